"""vLLM as an engine: how it is started, and rlctl's face inside its process."""
