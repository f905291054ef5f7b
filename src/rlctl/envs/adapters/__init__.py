"""Environments of other packages, played as ours are."""
