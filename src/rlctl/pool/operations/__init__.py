"""What the pool's requests do to its state, by what they are about: `store` sends each to its place."""
