"""Pure solvers: what environments and demonstrations know of their worlds (boards, lakes, chances, search)."""
