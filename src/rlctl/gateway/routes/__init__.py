"""What each path does, as an ASGI application, and the OpenAPI document of it."""
