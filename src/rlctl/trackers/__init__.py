"""Experiment trackers (TensorBoard, Weights & Biases, ...): what a run writes to disk, sent on to them."""
