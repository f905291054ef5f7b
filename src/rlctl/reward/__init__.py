"""Scores finished episodes: rule functions, weighted and named; a consumer of the pool and an HTTP service."""
