"""Functions that are not trusted, each call in a process of its own with limits.

    Sandbox (the caller, threads) --frames--> keeper (imports once) --fork--> child: confine itself, call

The child ends with the call. Time, memory, crash, exception: each is an outcome with a name, and never an error here.
"""
