"""Datasets out of runs and into them: what ended in `trajectories/`, chosen, exported, imported again."""
