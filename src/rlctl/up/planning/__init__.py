"""Before anything starts: which processes, on which devices and ports, and whether all they need is there."""
