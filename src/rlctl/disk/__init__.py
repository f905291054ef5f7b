"""What is written to disk is whole or not there."""
