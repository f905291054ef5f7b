"""A run as it goes on: progress, status, the picture of `rlctl top`."""
