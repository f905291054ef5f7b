"""The report of a run as one HTML file without outside parts: curves, episodes, failures, accounts, configuration."""
