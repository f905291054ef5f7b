"""What the files of a run directory say of their run."""
