"""Weights on disk, whole or not there: publications to the engines, and checkpoints."""
