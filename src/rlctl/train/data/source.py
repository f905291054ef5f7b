"""Where batches come from: the pool (leased over ZeroMQ) or a file of recorded batches."""

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from rlctl.config import Config
from rlctl.errors import ConfigError, RlctlError, Watchdog
from rlctl.wire import frames
from rlctl.wire.messages import (
    Ack,
    Batch,
    EndRun,
    FetchBatch,
    Hold,
    Nack,
    SetPolicyVersion,
)
from rlctl.wire.sockets import AskBlocking

log = logging.getLogger(__name__)
WAIT_S = 2.0
"""One long poll; shorter than the socket's retry, so a question that is only waiting is not sent twice."""
ANSWER_S = 120.0
"""How long the pool may be away (restarting) before the trainer gives up."""
SAY_EVERY_S = 15.0
RECORDS = "batches.msgpack"


class BatchSource(Protocol):
    """What the loop needs of the pool."""

    def begin(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """A trainer starts: settle what the one before it held (`leases`: the batches of the checkpoint)."""

    def fetch(self, groups: int) -> Batch:
        """The next batch of `groups` groups; waits for it."""

    def ack(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """Every trajectory of the leases has had its outcome; without leases: only those named have."""

    def hold(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """Learned from, but not in a checkpoint: keep the leases until `ack`, or until a trainer begins anew."""

    def set_version(self, version: int) -> None:
        """All engines serve `version`."""

    def end(self) -> None:
        """The last step is done: nothing will be fetched any more."""


class PoolSource:
    """The pool at `config.pool_url`."""

    def __init__(self, config: Config) -> None:
        self._ask = AskBlocking(config.pool_url)
        self._lease_s = config.pool.lease_timeout_s
        self._patience_s = config.monitor.watchdog_s
        self._record: BinaryIO | None = None
        if config.train.record:
            config.run_dir.mkdir(parents=True, exist_ok=True)
            self._record = (config.run_dir / RECORDS).open("ab")

    def begin(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """Acknowledge the checkpoint's batches once more, and give every other lease back: nobody works on it now."""
        if leases:
            self.ack(leases, outcomes)
        self._ask.ask(Nack(lease=""), timeout_s=ANSWER_S)

    def fetch(self, groups: int) -> Batch:
        """Waits for a full batch; Watchdog after `monitor.watchdog_s` without one."""
        began = said = time.monotonic()
        request = FetchBatch(groups=groups, wait_s=WAIT_S, lease_s=self._lease_s, lease=uuid.uuid4().hex)
        while True:
            batch: Batch = self._ask.ask(request, timeout_s=ANSWER_S)
            if batch.lease:
                if self._record:
                    append_batch(self._record, batch)
                return batch
            now = time.monotonic()
            if now - began > self._patience_s:
                raise Watchdog(f"no batch of {groups} groups from the pool for {self._patience_s:g} s")
            if now - said > SAY_EVERY_S:
                said = now
                log.info("waiting for %d ready groups (%.0f s so far)", groups, now - began)

    def ack(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """The first message ends them all; those for the other leases let the pool refuse if it left one out."""
        for number, lease in enumerate(leases or [""]):
            self._ask.ask(Ack(lease=lease, outcomes={} if number else outcomes), timeout_s=ANSWER_S)

    def hold(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        """The pool gives their places in admission free, and waits for the checkpoint."""
        for lease in leases:
            self._ask.ask(Hold(lease=lease, trajectory_uids=list(outcomes)), timeout_s=ANSWER_S)

    def set_version(self, version: int) -> None:
        self._ask.ask(SetPolicyVersion(version), timeout_s=ANSWER_S)

    def end(self) -> None:
        self._ask.ask(EndRun(), timeout_s=ANSWER_S)


class FileSource:
    """Recorded batches, in the order they were fetched; nobody to acknowledge them to."""

    def __init__(self, path: Path, skip: int = 0) -> None:
        if not path.is_file():
            raise ConfigError(f"train.replay = {str(path)!r}: no such file")
        self._path = path
        self._batches = read_batches(path)
        for _ in range(skip):
            self.fetch(0)

    def begin(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        pass

    def fetch(self, groups: int) -> Batch:
        """The next record, whatever number of groups it holds."""
        batch = next(self._batches, None)
        if batch is None:
            raise RlctlError(f"{self._path} has no more batches; set run.steps to what it holds")
        return batch

    def ack(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        pass

    def hold(self, leases: Sequence[str], outcomes: dict[str, str]) -> None:
        pass

    def set_version(self, version: int) -> None:
        pass

    def end(self) -> None:
        pass


def append_batch(file: BinaryIO, batch: Batch) -> None:
    """One record: a checked frame (see `wire.frames`) around the batch in msgpack."""
    file.write(frames.frame(msgspec.msgpack.encode(batch)))
    file.flush()


def read_batches(path: Path) -> Iterator[Batch]:
    """Every record of the file; RlctlError at one that is broken or not a batch."""
    decode = msgspec.msgpack.Decoder(Batch).decode
    sound = number = 0
    for position, payload in frames.read(path):
        sound, number = position, number + 1
        try:
            yield decode(payload)
        except msgspec.DecodeError as error:
            raise RlctlError(f"{path}: record {number} is not a recorded batch: {error}") from error
    if sound < path.stat().st_size:
        raise RlctlError(f"{path}: record {number + 1} is broken or cut off")


def open_source(config: Config, done: int) -> BatchSource:
    """The file of `train.replay` after the first `done` batches, else the pool."""
    if config.train.replay:
        return FileSource(Path(config.train.replay), skip=done)
    return PoolSource(config)
