"""A run as it ended: a page for browsers, a picture, a table on the terminal."""
