"""LoRA beside frozen layers, which may be in 4 bits."""
