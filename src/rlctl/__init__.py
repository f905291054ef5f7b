"""rlctl: agentic reinforcement learning of language models, one process per component."""

__version__ = "0.1.0"
