"""What a tool-using agent can call: a calculator, Python in the sandbox, search, MCP servers, functions."""
