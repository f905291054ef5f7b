"""The trainer: leased groups become token samples, samples become gradients, gradients become published weights."""
