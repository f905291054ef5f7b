"""What is known of every trajectory: the steps a prompt may extend, and their way into the pool."""
