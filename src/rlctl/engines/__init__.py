"""Processes that generate tokens, all with one HTTP face: the embedded engine here, vLLM through its own server."""
