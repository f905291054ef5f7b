"""The durable store between agents and trainer: groups, leases, scores, staleness, exact accounting."""
