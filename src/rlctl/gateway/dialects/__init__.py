"""The APIs that clients speak: JSON of each to one kind of call, and its outcome back to JSON or events."""
