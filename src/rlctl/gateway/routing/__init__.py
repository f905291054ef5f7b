"""Calls to the engines: which one, over which connection, in which words."""
