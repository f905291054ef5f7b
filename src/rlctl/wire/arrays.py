"""Token arrays on the wire: little-endian int32 ids and float32 logprobs, as bytes."""

from collections.abc import Iterable, Sequence

import numpy as np

INT = np.dtype("<i4")
FLOAT = np.dtype("<f4")
TOKEN_BYTES = 4
"""Of one id, and of one log-probability."""


def pack_ids(ids: Iterable[int] | np.ndarray) -> bytes:
    """Token ids `[T]` -> 4 T bytes."""
    return np.asarray(ids if isinstance(ids, np.ndarray | Sequence) else list(ids), dtype=INT).tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """4 T bytes -> int32 `[T]`, read-only view without a copy."""
    return np.frombuffer(data, dtype=INT)


def pack_floats(values: Iterable[float] | np.ndarray) -> bytes:
    """Floats `[T]` -> 4 T bytes (float32)."""
    return np.asarray(values if isinstance(values, np.ndarray | Sequence) else list(values), dtype=FLOAT).tobytes()


def unpack_floats(data: bytes) -> np.ndarray:
    """4 T bytes -> float32 `[T]`, read-only view without a copy."""
    return np.frombuffer(data, dtype=FLOAT)


def filled(tokens: int, value: float) -> np.ndarray:
    """float32 `[T]` of one value; `np.full` takes twice as long where T is small."""
    array = np.empty(tokens, FLOAT)
    array.fill(value)
    return array


def count(data: bytes) -> int:
    """Number of tokens in a packed array."""
    return len(data) // TOKEN_BYTES


def expand_versions(runs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Run-length `[(version, tokens), ...]` -> int32 `[T]`."""
    return np.repeat(np.array([v for v, _ in runs], dtype=INT), [n for _, n in runs])
