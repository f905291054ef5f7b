"""Our own routes: around an episode (init, register, complete), and for white-box agents (generate, ...)."""

import asyncio
import re
import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from rlctl.errors import PeerRefused
from rlctl.gateway.calls import Calls
from rlctl.gateway.dialects.fields import Common, decode, sampling
from rlctl.gateway.door.http import Request, Response, answer
from rlctl.gateway.door.keys import Keys
from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import fitted
from rlctl.gateway.workers.siblings import Siblings, from_sibling
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.messages import CompleteTrajectory
from rlctl.wire.samples import Facts, Step

UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""What a trajectory or prompt uid looks like: it stands in URLs and file names."""
ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?|https?://\[[0-9a-fA-F:]+\](:[0-9]{1,5})?/?")
"""Of an engine."""


LARGEST = 3.4e38
"""Of 32-bit floats."""
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Init(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /init_trajectory; all of it optional."""

    trajectory_uid: str = ""
    prompt_uid: str = ""
    channel: str = ""
    metadata: dict[str, Any] = {}


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST register_trajectory."""

    channel: str = "train"
    metadata: dict[str, Any] | None = None


class Complete(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST complete_trajectory."""

    reward: float | None = None
    channel: str = ""
    """Empty: as registered."""
    status: str = "complete"
    facts: Facts = Facts()
    error: str = ""


class WhiteSampling(Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sampling_params` of POST /generate."""

    logprobs: int | bool | None = None
    """Log-probabilities of the sampled tokens always come back."""


class Generate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /generate."""

    prompt_ids: list[int]
    sampling_params: WhiteSampling = WhiteSampling()
    trajectory_uid: str = ""
    """Keeps the calls of one episode on one engine."""
    image_data: Any = None
    video_data: Any = None


class StepPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of POST /submit_steps."""

    prompt_ids: list[int]
    response_ids: list[int]
    trajectory_uid: str
    prompt_uid: str
    rollout_log_probs: list[float] | None = None
    reward: float | None = None
    step_index: Index = 0
    policy_version: Index = 0
    is_last: bool = False
    metadata: dict[str, Any] | None = None
    multi_modal_data: Any = None
    routed_experts: Any = None


class Engines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /engines."""

    add: list[str] = []
    remove: list[str] = []


class SubmitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: list[StepPayload]


_generate = msgspec.json.Decoder(Generate)


class EpisodeRoutes:
    """The routes that are ours, not OpenAI's."""

    def __init__(self, calls: Calls, keys: Keys, reward_url: str, siblings: Siblings, public_url: str = "") -> None:
        self.calls = calls
        self.keys = keys
        self.public_url = public_url.rstrip("/")
        self.siblings = siblings
        self.worker = siblings.worker
        self.reward_url = reward_url.rstrip("/")

    async def init(self, request: Request) -> Response:
        body: Init = request.json(Init)
        uid, prompt_uid = body.trajectory_uid or self.worker.new_uid(), body.prompt_uid or uuid.uuid4().hex
        for name, value in (("trajectory_uid", uid), ("prompt_uid", prompt_uid)):
            if not UID.fullmatch(value):
                raise bad(f"{name} must be 1 to 128 letters, digits or ._:- and not begin with a sign", name)
        if not self.worker.owns(uid):
            return await self.siblings.pass_on(uid, request)
        self.calls.trajectories.open(uid, prompt_uid)
        self.calls.trajectories.register(uid, prompt_uid, body.channel, body.metadata)
        url = f"{self.public_url or _called(request)}/{uid}/{prompt_uid}"
        begun = {"trajectory_uid": uid, "prompt_uid": prompt_uid}
        if key := self.keys.session(uid, prompt_uid):
            return answer({**begun, "base_url": f"{url}/{key}/v1", "api_key": key})
        return answer({**begun, "base_url": f"{url}/v1"})

    async def register(self, request: Request) -> Response:
        body: Register = request.json(Register)
        self.calls.trajectories.register(request.uid, request.prompt_uid, body.channel, body.metadata or {})
        return answer({"status": "ok"})

    async def complete(self, request: Request) -> Response:
        body: Complete = request.json(Complete)
        if body.status not in ("complete", "failed"):
            raise bad("status must be complete or failed", "status")
        facts = msgspec.structs.replace(body.facts, error=body.error) if body.error else body.facts
        message = CompleteTrajectory(request.uid, 0, body.status, facts, body.reward, request.prompt_uid, body.channel)
        await self._end(request.uid, message)
        return answer({"status": "ok"})

    async def _end(self, uid: str, message: CompleteTrajectory) -> None:
        try:
            async with asyncio.timeout(self.calls.timeout_s):
                await self.calls.trajectories.end(uid, message)
        except PeerRefused as error:
            raise Fault(409, f"the pool refused the end of {uid}: {error}", "pool_refused") from None
        except TimeoutError:
            text = "the pool does not answer; the end is kept and sent again"
            raise Fault(503, text, "pool_away", retry_after_s=2) from None

    async def generate(self, request: Request) -> Response:
        """Token ids in, token ids out; nothing is recorded (see submit_steps)."""
        calls = self.calls
        body = decode(_generate, request.body)
        if body.trajectory_uid and not self.worker.owns(body.trajectory_uid):
            return await self.siblings.pass_on(body.trajectory_uid, request)  # its owner knows its engine
        if body.image_data or body.video_data:
            raise unsupported(
                "image_data/video_data", "images come with messages (chat/completions, responses, messages)"
            )
        if body.trajectory_uid and not UID.fullmatch(body.trajectory_uid):
            raise bad("trajectory_uid must be 1 to 128 letters, digits or ._:-", "trajectory_uid")
        _check_ids(body.prompt_ids, calls.codec.vocabulary, "prompt_ids")
        if not body.prompt_ids:
            raise bad("prompt_ids must not be empty", "prompt_ids")
        params = body.sampling_params
        asked = sampling(params, calls.limits, params.max_tokens, max(0, int(params.logprobs or 0) - 1))
        if asked.n > 1:
            raise unsupported("n", "ask several times")
        asked = fitted(asked, len(body.prompt_ids), calls.limits)
        uid = body.trajectory_uid or uuid.uuid4().hex
        try:
            completion = await calls.upstream.complete(uid, "", pack_ids(body.prompt_ids), asked)
        finally:
            if not body.trajectory_uid:
                calls.upstream.router.forget(uid)
        one = completion.sampled[0]
        result = {"token_ids": one.ids, "log_probs": one.logprobs, "stop_reason": one.finish_reason}
        if one.top is not None and asked.top_logprobs:
            result["top_logprobs"] = one.top
        return answer({**result, "policy_versions": completion.versions[0]})

    async def submit_steps(self, request: Request) -> Response:
        """Steps that a white-box agent made itself with /generate."""
        channel = _query(request).get("channel", "")
        body: SubmitBody = request.json(SubmitBody)
        steps = [self._step(one, channel, f"steps[{i}]") for i, one in enumerate(body.steps)]
        if not all(self.worker.owns(step.trajectory_uid) for step in steps):
            return await self._submit_elsewhere(request, body.steps)
        self.calls.recorder.admit()
        by_uid: dict[str, list[Step]] = defaultdict(list)
        for step in steps:
            by_uid[step.trajectory_uid].append(step)
        fresh: list[Step] = []
        for uid, own in by_uid.items():
            live = self.calls.trajectories.open(uid, own[0].prompt_uid)
            live.channel = live.channel or channel
            for step in own:
                if step.step_index not in live.submitted:
                    fresh.append(step)
                    live.submitted.add(step.step_index)
                    live.recorded += 1
        if fresh:
            await self.calls.recorder.submit(fresh)
        for one in body.steps:
            if one.is_last:
                await self._end(one.trajectory_uid, CompleteTrajectory(one.trajectory_uid, 0, channel=channel))
        return answer({"accepted": len(fresh), "duplicate": len(steps) - len(fresh)})

    async def _submit_elsewhere(self, request: Request, steps: list[StepPayload]) -> Response:
        """Each owner gets its own steps; the first answer that is not good is the answer."""
        by_owner: dict[int, list[StepPayload]] = defaultdict(list)
        for step in steps:
            by_owner[self.worker.owner(step.trajectory_uid)].append(step)
        total: Counter[str] = Counter()
        for owner, own in by_owner.items():
            part = msgspec.json.encode(SubmitBody(own))
            if owner == self.worker.index:
                reply = await self.submit_steps(replace(request, body=part))
            else:
                reply = await self.siblings.pass_on(own[0].trajectory_uid, request, part)
            if reply.status != 200:
                return reply
            total.update(msgspec.json.decode(reply.body, type=dict[str, int]))
        return answer(total)

    def _step(self, one: StepPayload, channel: str, where: str) -> Step:
        if one.multi_modal_data or one.routed_experts:
            raise unsupported(where, "multi_modal_data and routed_experts are not trained")
        if one.rollout_log_probs is None or len(one.rollout_log_probs) != len(one.response_ids):
            raise bad(f"{where}.rollout_log_probs must have one value per response id (from /generate)", where)
        if any(abs(value) > LARGEST for value in one.rollout_log_probs):
            raise bad(f"{where}.rollout_log_probs must be finite as 32-bit numbers", where)
        if not UID.fullmatch(one.trajectory_uid) or not UID.fullmatch(one.prompt_uid):
            raise bad(f"{where} needs trajectory_uid and prompt_uid", where)
        _check_ids(one.prompt_ids, self.calls.codec.vocabulary, f"{where}.prompt_ids")
        _check_ids(one.response_ids, self.calls.codec.vocabulary, f"{where}.response_ids")
        size = len(one.response_ids)
        return Step(
            one.trajectory_uid,
            one.step_index,
            pack_ids(one.prompt_ids),
            pack_ids(one.response_ids),
            pack_floats(one.rollout_log_probs),
            [(one.policy_version, size)] if size else [],
            prompt_uid=one.prompt_uid,
            channel=channel,
            reward=one.reward,
            fork_reason="white_box" if one.step_index else "",
        )

    async def engines(self, request: Request) -> Response:
        """Add and remove engines while the gateway runs."""
        body: Engines = request.json(Engines)
        router = self.calls.upstream.router
        wrong = [url for url in body.add + body.remove if not ADDRESS.fullmatch(url)]
        if wrong:
            raise bad(f"{wrong[0]!r} is no address: http://HOST:PORT", "add")
        for url in body.add:
            router.add(url)
        for url in body.remove:
            router.remove(url)
        if not from_sibling(request.scope):
            told = await self.siblings.each("/engines", request.body)
            if not all(reply is not None and reply.status == 200 for reply in told):
                text = "not every worker has heard of it; ask again"
                raise Fault(503, text, "worker_away", retry_after_s=1)
        return answer({"engines": [{"url": one.url, "up": one.serving} for one in router.engines]})

    async def compute_reward(self, request: Request) -> Response:
        if not self.reward_url:
            raise Fault(503, "no reward service: start the gateway with --reward http://HOST:PORT", "no_reward_service")
        status, body = await self.calls.upstream.post(f"{self.reward_url}/score", request.body)
        return Response(body, status)


def _check_ids(ids: list[int], vocabulary: int, where: str) -> None:
    if any(not 0 <= i < vocabulary for i in ids):
        raise bad(f"{where}: token ids must be from 0 to {vocabulary - 1}", where)


def _called(request: Request) -> str:
    """The address that the client used."""
    host = request.header(b"host") or "{}:{}".format(*request.scope["server"])
    return f"{'https' if request.header(b'x-forwarded-proto') == 'https' else 'http'}://{host}"


def _query(request: Request) -> dict[str, str]:
    text = request.scope.get("query_string", b"").decode("latin-1")
    return dict(pair.partition("=")[::2] for pair in text.split("&") if pair)
