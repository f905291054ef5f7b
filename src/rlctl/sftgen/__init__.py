"""`rlctl sft-gen`: demonstrations of optimal players, played through the environments, and of a run itself."""
