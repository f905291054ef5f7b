"""Policies on disk: the model built on the spot, and the one way any model is loaded."""
