"""While processes run: started, watched and ended together; none outlives the run."""
