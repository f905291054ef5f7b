"""What crosses a process boundary: message types, packed arrays, ZeroMQ sockets."""
