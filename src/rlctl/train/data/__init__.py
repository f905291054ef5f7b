"""What is trained on: Steps and demonstrations to token samples, samples to micro-batches."""
