"""What generates tokens: the embedded transformers engine and vLLM, behind the same HTTP face."""
