"""A small MCP server over stdio, started as a process by the tests."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("stock")


@server.tool()
def stock(item: str) -> str:
    """How many of an item there are."""
    return {"apples": "12", "pears": "0"}[item]


@server.tool()
def leave() -> str:
    """End the server's process at once."""
    os._exit(3)


if __name__ == "__main__":
    server.run()
