"""Boards that we have built: their rules, and where they come from by seed or from files."""
