"""`python -m rlctl`: what torchrun and the supervisor run."""

from rlctl.cli import main

main()
