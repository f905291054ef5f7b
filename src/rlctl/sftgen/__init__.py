"""Optimal demonstrations by search: pure solvers, and the generator that plays them through the environments."""
