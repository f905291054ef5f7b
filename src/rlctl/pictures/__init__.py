"""Pictures of episodes: what was said and seen, written down (record), drawn (boards, words) and animated (files)."""
