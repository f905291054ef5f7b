"""The embedded engine: continuous batching on torch, small enough to read, fast for small models on one CPU thread."""
