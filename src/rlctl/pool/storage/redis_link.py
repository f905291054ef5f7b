"""A Redis server that may go away and come back: connection, patience, and whether it keeps what it acknowledges."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from rlctl.errors import ConfigError
from rlctl.pool.storage.segments import StorageError, Unsure

log = logging.getLogger(__name__)
AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.SlotNotCoveredError,
)
"""Wait and try again. Anything else that Redis says is a refusal."""
NEVER = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Of these, the ones that waiting does not cure."""
CONNECT_S = 2.0
ANSWER_S = 5.0
"""For one answer; then the connection is given up and the command sent again."""
BACKOFF_S = (0.02, 1.0)
"""Between attempts: the first pause, doubled up to the last."""
T = TypeVar("T")


def where(url: str) -> str:
    """`url` without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"


class Link:
    """Commands for one server or cluster; any number of threads."""

    def __init__(self, url: str, wait_s: float) -> None:
        self.where = where(url)
        self._url = url
        self._wait_s = wait_s
        self._client: Any = None
        self._down_since: float | None = None
        self._closing = threading.Event()
        self.script_flags = False
        """Whether the server knows the line `#!lua flags=...` (Redis 7)."""

    def call(self, do: Callable[[Any], T]) -> T:
        """`do(client)`, again while nobody answers, until `wait_s` after the last answer: then Unsure.

        `do` must be safe to run twice. StorageError at once when Redis says no (full, not allowed).
        """
        pause = BACKOFF_S[0]
        while True:
            try:
                self._client = self._client or self._connect()
                done = do(self._client)
            except NEVER as error:
                raise ConfigError(f"{self.where}: {error}") from None
            except AWAY as error:
                self._wait(error, pause)
                pause = min(2 * pause, BACKOFF_S[1])
            except exceptions.RedisError as error:
                raise StorageError(f"{self.where} refuses: {error}{_cure(error)}") from None
            else:
                if self._down_since is not None:
                    log.warning("%s answers again", self.where)
                    self._down_since = None
                return done

    def _wait(self, error: Exception, pause: float) -> None:
        now = time.monotonic()
        if self._down_since is None:
            log.warning("%s does not answer (%s); trying for %g s", self.where, error, self._wait_s)
            self._down_since = now
        if now - self._down_since >= self._wait_s or self._closing.wait(pause):
            raise Unsure(f"{self.where} has not answered for {now - self._down_since:.0f} s: {error}") from None

    def _connect(self) -> Any:
        options: dict[str, Any] = {
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": CONNECT_S,
            "socket_keepalive": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        try:
            client: Any = redis.Redis.from_url(self._url, **options)
            client.connection_pool.make_connection()  # it looks at the options, not at the server
        except (TypeError, ValueError) as error:
            raise ConfigError(f"pool.url = {self.where}: {error}") from None
        try:
            told = client.info()
        except exceptions.NoPermissionError:
            return client
        self.script_flags = int(str(told["redis_version"]).partition(".")[0]) >= 7
        if not told.get("cluster_enabled"):
            return client
        client.close()
        return RedisCluster.from_url(self._url, **options)

    def check(self, key: str, durable: bool) -> None:
        """ConfigError if the server of `key` evicts data, or (with `durable`) may lose what it acknowledged."""
        try:
            found = self.call(lambda client: _settings(client, key))
        except StorageError as error:
            if isinstance(error, Unsure):
                raise
            log.warning("%s; whether it keeps what it acknowledges could not be checked (CONFIG GET)", error)
            return
        if found["maxmemory"] != "0" and found["maxmemory-policy"] != "noeviction":
            raise ConfigError(
                f"{self.where} would evict the pool's samples when it is full (maxmemory-policy "
                f"{found['maxmemory-policy']}): set it to noeviction"
            )
        wanted = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
        wrong = [f"{name} {found[name]}" for name in wanted if found[name] != wanted[name]]
        if wrong and durable:
            raise ConfigError(
                f"{self.where} acknowledges what is not on disk yet ({', '.join(wrong)}): start it with "
                "--appendonly yes --appendfsync always, or set pool.fsync = false: a crash of Redis then loses samples"
            )
        if wrong:
            log.warning("%s: a crash of Redis loses acknowledged samples (%s)", self.where, ", ".join(wrong))

    @property
    def down(self) -> bool:
        return self._down_since is not None

    def interrupt(self) -> None:
        """End all waiting, now and later; a command that is out has a second left for its answer."""
        self._closing.set()
        if isinstance(self._client, redis.Redis):
            timer = threading.Timer(1.0, self._client.connection_pool.disconnect)
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        if self._client:
            self._client.close()


def _settings(client: Any, key: str) -> dict[str, str]:
    node = {"target_nodes": client.get_node_from_key(key)} if isinstance(client, RedisCluster) else {}
    names = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy")
    return {name: str(client.config_get(name, **node).get(name, "")) for name in names}


def _cure(error: exceptions.RedisError) -> str:
    full = isinstance(error, exceptions.OutOfMemoryError) or "maxmemory" in str(error)
    return " (it is full: raise maxmemory)" if full else ""
