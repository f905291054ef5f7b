"""The journal in a Redis: the pool's process may then be started again on any host that reaches it.

    append    one stream entry per commit (more when it is large), stored before anything is acknowledged
    snapshot  the state in chunks of a hash; then the stream is trimmed up to it
    own       a lease that is renewed; it fends off a second pool. Who lost it nevertheless cannot write any more

See `redis_scripts` for the keys. Frames are those of the journal on disk, checksums included.
"""

import asyncio
import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from rlctl.errors import RlctlError
from rlctl.pool.state import Rules, State
from rlctl.pool.storage import redis_scripts as scripts
from rlctl.pool.storage.journal import replay
from rlctl.pool.storage.redis_link import Link
from rlctl.pool.storage.segments import StorageError, Unsure
from rlctl.pool.store import Store
from rlctl.wire import frames
from rlctl.wire.frames import Buffer, Record

log = logging.getLogger(__name__)
LEASE_S = 5.0
"""A pool that does not renew for this long (its host is gone) is replaced by one that waits."""
CHUNK = 4 << 20
"""Bytes of one stream entry or part of a snapshot, about."""
PAGE = 16
"""Stream entries read at once."""


class RedisJournal:
    """The journal of one run (see journal.Durable); writing it takes `own` first."""

    quick = False

    def __init__(self, url: str, run: str, wait_s: float, durable: bool = True) -> None:
        names = ("epoch", "owner", "head", "journal", "snapshot:a", "snapshot:b")
        self.keys = {name: f"rlctl:{{{run}}}:{name}" for name in names}
        self.run = run
        self._link = Link(url, wait_s)
        self._link.check(self.keys["head"], durable)
        self._epoch = 0
        self._owner = ""
        self._seq = 0
        """Of the newest commit that was tried."""
        self._stored = 0
        """Of the newest one that is stored."""
        self._appended = 0
        """Bytes, of which `_snapshot_bytes` are in the snapshot and `_cut_bytes` in the next one."""
        self._snapshot_bytes = 0
        self._cut_bytes = 0
        self._renewed = 0.0
        """Monotonic time since when the lease lasts."""
        self._closing = threading.Event()
        self._over: RlctlError | None = None

    @property
    def where(self) -> str:
        return self._link.where

    @property
    def owned(self) -> bool:
        return self._epoch > 0

    @property
    def since_snapshot(self) -> int:
        """Bytes that a recovery would replay."""
        return self._appended - self._snapshot_bytes

    # ------------------------------------------------------------ whose run it is

    async def own(self, address: str) -> None:
        """Wait until no other pool owns the run, then own it; `address` is shown to people."""
        told = False
        while holder := await asyncio.to_thread(self._take, address):
            if not told:
                log.warning("run %s belongs to the pool %s; this one waits to take over", self.run, holder)
                told = True
            await asyncio.sleep(LEASE_S / 10)
        threading.Thread(target=self._renewing, name="lease", daemon=True).start()
        log.info("owns run %s in %s (epoch %d)", self.run, self.where, self._epoch)

    def _take(self, address: str) -> str:
        """Empty, or who holds the run. A holder that was a process of this host and is gone is no holder."""
        me = json.dumps(_this_process() | {"address": address})
        dead = ""
        while True:
            self._renewed = time.monotonic()
            epoch, held = self._eval(scripts.TAKE, ("epoch", "owner"), me, int(LEASE_S * 1000), dead)
            if epoch:
                self._epoch, self._owner = int(epoch), me
                return ""
            if not _gone(json.loads(held)):
                return str(held.decode())
            dead = held.decode()

    def _renewing(self) -> None:
        """In a thread of its own: a long recovery must not cost the lease."""
        while not self._closing.wait(LEASE_S / 4):
            try:
                self._renew()
            except Unsure:
                continue  # the link has said that nobody answers
            except StorageError as error:
                log.warning("the lease on run %s could not be renewed: %s", self.run, error)
            except RlctlError as error:
                self._over = error
                return

    def _renew(self) -> None:
        began = time.monotonic()
        self._do(scripts.RENEW, ("epoch", "owner"), self._epoch, self._owner, int(LEASE_S * 1000))
        self._renewed = began

    def confirm(self) -> None:
        """RlctlError when another pool has taken over; asks Redis only if the lease may have run out."""
        if time.monotonic() - self._renewed > LEASE_S / 2:
            self._renew()

    async def keep(self) -> None:
        """Runs as long as the run is ours; RlctlError when another pool has taken over."""
        while True:
            if self._over:
                raise self._over
            await asyncio.sleep(LEASE_S / 10)

    # ------------------------------------------------------------ writing

    def append(self, records: list[Record]) -> None:
        """One commit, stored when it returns. Unsure when Redis did not answer; the next commit then deletes it."""
        self._seq += 1
        blobs = list(_joined(records, CHUNK))
        self._do(scripts.APPEND, ("epoch", "head", "journal"), self._epoch, self._seq, self._stored, *blobs)
        self._stored = self._seq
        self._appended += sum(map(len, blobs))

    def cut(self) -> int:
        """The newest commit."""
        self._cut_bytes = self._appended
        return self._stored

    def snapshot(self, state: bytes, position: int) -> None:
        """Store the encoded state after commit `position`, then free what it replaces."""
        cut_bytes = self._cut_bytes
        current = self._link.call(lambda client: client.hget(self.keys["head"], "snapshot"))
        old, new = ("a", "b") if current == b"a" else ("b", "a")
        framed = frames.frame(state)
        chunks = [framed[at : at + CHUNK] for at in range(0, len(framed), CHUNK)]
        target = f"snapshot:{new}"
        self._do(scripts.BEGIN_SNAPSHOT, ("epoch", "head", target), self._epoch, position, new)
        for number, chunk in enumerate(chunks):
            self._do(scripts.PUT_CHUNK, ("epoch", "head", target), self._epoch, position, number, chunk)
        keys = ("epoch", "head", target, f"snapshot:{old}", "journal")
        self._do(scripts.END_SNAPSHOT, keys, self._epoch, position, new, len(chunks))
        self._snapshot_bytes = cut_bytes

    def _eval(self, script: str, keys: Sequence[str], *args: Any) -> Any:
        names = [self.keys[key] for key in keys]

        def run(client: Any) -> Any:
            roomy = script is scripts.APPEND or not self._link.script_flags
            return client.register_script(script if roomy else scripts.WHEN_FULL + script)(names, args)

        return self._link.call(run)

    def _do(self, script: str, keys: Sequence[str], *args: Any) -> None:
        answer = self._eval(script, keys, *args)
        if answer == b"FENCED":
            raise RlctlError(f"another pool has taken over run {self.run} in {self.where}")
        if answer == b"LOST":
            raise RlctlError(
                f"{self.where} has lost acknowledged data of run {self.run} (restarted without its append-only file, "
                "restored from a copy, or emptied); the pool stops"
            )
        if answer != b"OK":
            raise StorageError(f"{self.where}: overtaken by a later attempt ({answer!r})")

    # ------------------------------------------------------------ reading

    def recover(self, rules: Rules) -> Store:
        """The store as it was: snapshot, then every event after it."""
        head = {k.decode(): v.decode() for k, v in self._link.call(lambda c: c.hgetall(self.keys["head"])).items()}
        snapshot_seq, self._seq = int(head.get("snapshot_seq", 0)), int(head.get("seq", 0))
        self._stored = self._seq
        state = self._load_snapshot(f"snapshot:{head['snapshot']}") if "snapshot" in head else None
        store = Store(rules, state)
        events = replay(store, self._payloads(snapshot_seq))
        if state or events:
            live = len(store.state.trajectories)
            log.info("recovered %d live trajectories from %d events in %s", live, events, self.where)
        return store

    def _load_snapshot(self, key: str) -> State:
        chunks = self._link.call(lambda client: client.hgetall(self.keys[key]))
        whole = b"".join(chunks[number] for number in sorted(chunks, key=int))
        for payload in frames.unpack(whole):
            return msgspec.msgpack.decode(payload, type=State)
        raise StorageError(f"{self.where}: {self.keys[key]}: damaged snapshot")

    def _payloads(self, seq: int) -> Iterator[bytes]:
        """Records of the commits after `seq`; StorageError if one of them is missing or damaged."""
        start, position = f"{seq + 1}-0", seq
        while True:
            page = self._page(start)
            for name, fields in page:
                current, part = map(int, name.split(b"-"))
                if current != position and int(fields[b"after"]) != position:
                    raise StorageError(f"{self.where}: {self.keys['journal']}: no commit {fields[b'after'].decode()}")
                position, start = current, f"{current}-{part + 1}"
                yield from self._records(name, fields[b"frames"])
            if len(page) < PAGE:
                break
        if position != self._stored:
            raise StorageError(f"{self.where}: {self.keys['journal']}: commits {position + 1} to {self._stored} gone")

    def _page(self, start: str) -> Any:
        return self._link.call(lambda client: client.xrange(self.keys["journal"], start, "+", PAGE))

    def _records(self, name: bytes, data: bytes) -> Iterator[bytes]:
        size = 0
        for payload in frames.unpack(data):
            size += frames.HEADER.size + len(payload)
            yield payload
        if size != len(data):
            raise StorageError(f"{self.where}: {self.keys['journal']}: damaged entry {name.decode()}")
        self._appended += size

    # ------------------------------------------------------------ ending

    def interrupt(self) -> None:
        """Let no call wait any longer."""
        self._closing.set()
        self._link.interrupt()

    def close(self) -> None:
        """Let go of everything, so that another pool need not wait for the lease to run out."""
        self.interrupt()
        if self.owned and not self._link.down:
            try:
                self._eval(scripts.RELEASE, ("epoch", "owner"), self._epoch, self._owner)
            except StorageError as error:
                log.warning("the lease on run %s runs out by itself: %s", self.run, error)
        self._link.close()


def _joined(records: Sequence[Record], size: int) -> Iterator[bytes]:
    """Whole records, in blobs of at least `size` bytes."""
    blob: list[Buffer] = []
    length = 0
    for record in records:
        blob += record
        length += sum(map(len, record))
        if length >= size:
            yield b"".join(blob)
            blob, length = [], 0
    if blob:
        yield b"".join(blob)


def _this_process() -> dict[str, Any]:
    return {"host": _host(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def _host() -> str:
    """This machine since it was booted, and the container in it: where a pid means one process."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    known = [boot.read_text().strip(), str(space.readlink())] if boot.exists() and space.is_symlink() else []
    return f"{socket.gethostname()}/{zlib.crc32(''.join(known).encode()):08x}"


def _gone(owner: dict[str, Any]) -> bool:
    """Whether the owner was a process of this host that is no more."""
    if owner["host"] != _host():
        return False
    try:
        process = psutil.Process(owner["pid"])
        return process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - owner["started"]) > 1.0
    except psutil.NoSuchProcess:
        return True
