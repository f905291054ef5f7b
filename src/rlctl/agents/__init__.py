"""Agents: what turns an instance of a task into an episode, by calling the model through a `base_url`."""
