"""The trainer: leased groups become packed token samples, samples become gradients, gradients become published weights."""
