"""Logs and metrics: one line format, one JSONL file per process, always on."""
