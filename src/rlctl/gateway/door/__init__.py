"""How bytes become requests: connections accepted, bounded, parsed, and who may ask."""
