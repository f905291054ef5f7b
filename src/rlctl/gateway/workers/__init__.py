"""Several gateway processes behind one port: their parent, who owns which trajectory, how they hand over."""
