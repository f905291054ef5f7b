"""Append-only record files `PREFIX-OFFSET.log`: frames `[length u32][crc32 u32][payload]`, little-endian.

OFFSET is the position of the file's first byte in the whole stream, so a cursor is one number and files can be deleted
from the front. Written by the pool (its journal, and the ended trajectories in `trajectories/`), read by anybody.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
from zlib_ng.zlib_ng import crc32

from rlctl.wire.messages import Noted
from rlctl.wire.samples import Ended

HEADER = struct.Struct("<II")
Buffer = bytes | memoryview
Record = tuple[Buffer, ...]
"""The bytes of one frame, in pieces."""


def pieces(*payload: Buffer) -> Record:
    """One record whose payload is the pieces in a row; large ones are not copied."""
    length = checksum = 0
    for piece in payload:
        length += len(piece)
        checksum = crc32(piece, checksum)
    return (HEADER.pack(length, checksum), *payload)


def frame(payload: bytes) -> bytes:
    """One record."""
    return b"".join(pieces(payload))


def path(directory: Path, prefix: str, offset: int) -> Path:
    return directory / f"{prefix}-{offset:016d}.log"


def files(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """(offset, path) of the stream's files in order."""
    found = directory.glob(f"{prefix}-{'[0-9]' * 16}.log")
    return sorted((int(file.stem.rpartition("-")[2]), file) for file in found)


def read(file: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """(position after the frame, payload) of the whole frames from byte `start`; ends before the first broken one."""
    with file.open("rb") as source:
        source.seek(start)
        position = start
        while len(header := source.read(HEADER.size)) == HEADER.size:
            length, checksum = HEADER.unpack(header)
            payload = source.read(length)
            if not length or len(payload) < length or crc32(payload) != checksum:
                return  # zeros are what a file system leaves behind: no record is empty
            position += HEADER.size + length
            yield position, payload


def unpack(data: bytes) -> Iterator[bytes]:
    """Payloads of whole frames in memory; ends before the first broken one."""
    position = 0
    while position + HEADER.size <= len(data):
        length, checksum = HEADER.unpack_from(data, position)
        position += HEADER.size + length
        payload = data[position - length : position]
        if not length or len(payload) < length or crc32(payload) != checksum:
            return
        yield payload


def read_ended(directory: Path, cursor: int = 0) -> Iterator[tuple[int, Ended]]:
    """(next cursor, record) of the trajectories that ended after `cursor`, on a live run as on a dead one.

    A record that is still being written is left out. A cursor into deleted files goes on at the first one kept.
    """
    decode = msgspec.msgpack.Decoder(Ended).decode
    kept = files(directory, "ended")
    for (offset, file), following in zip(kept, [*(o for o, _ in kept[1:]), None], strict=True):
        if following is None or following > cursor:
            for position, payload in read(file, max(0, cursor - offset)):
                yield offset + position, decode(payload)


def read_feedback(directory: Path) -> Iterator[Noted]:
    """All feedback of a run in the order of its arrival."""
    decode = msgspec.msgpack.Decoder(Noted).decode
    for _, file in files(directory, "feedback"):
        for _, payload in read(file):
            yield decode(payload)
