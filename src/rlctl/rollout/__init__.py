"""Runs agents on environments: groups for training without end, evaluations when asked."""
