"""What Sandbox and keeper say to each other: `[length u32][msgpack]` on the keeper's stdin and stdout."""

import os
import struct

import msgspec

LENGTH = struct.Struct("<I")
OUTCOMES = ("value", "raised", "wrong_type", "timeout", "memory", "crash")
"""How a call can end; all but the first are failures."""


class Limits(msgspec.Struct, frozen=True):
    """What one call may use."""

    time_s: float = 10.0
    """Wall-clock and CPU seconds."""
    memory_mb: int = 512
    """Beyond what the keeper has mapped."""
    file_mb: int = 16
    """Largest file it may write, in its own folder."""
    reply_bytes: int = 1 << 20
    """Longest encoded result."""


class Call(msgspec.Struct, frozen=True):
    """One question to the keeper."""

    target: str
    """module:function"""
    payload: bytes
    """msgpack of the positional arguments: the function is called as `function(*arguments, **keywords)`."""
    keywords: dict[str, object] = {}
    limits: Limits = Limits()
    argument: str = ""
    """module:Class of the one argument, a msgspec struct; empty: plain values."""


class Result(msgspec.Struct, frozen=True):
    """How the call ended."""

    outcome: str
    value: object = None
    text: str = ""
    """What went wrong."""


def write(descriptor: int, message: bytes) -> None:
    data = memoryview(LENGTH.pack(len(message)) + message)
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int) -> bytes | None:
    """One message; None at the end of the stream."""
    header = _exactly(descriptor, LENGTH.size)
    return None if header is None else _exactly(descriptor, LENGTH.unpack(header)[0])


def _exactly(descriptor: int, length: int) -> bytes | None:
    parts = []
    while length:
        part = os.read(descriptor, min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
