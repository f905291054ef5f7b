"""Optimizer steps over a plan of micro-batches, by the policy and by what learns beside it."""
