"""What is measured of training: metrics rows, diagnostics, effort, evaluations."""
