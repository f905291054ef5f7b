"""Pure rules that say whether an answer is right; environments and rewards use the same ones."""
