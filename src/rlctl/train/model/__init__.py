"""What computes log-probabilities and values: policy, reference, critic, and attention over shared prefixes."""
