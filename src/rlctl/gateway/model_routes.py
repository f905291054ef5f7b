"""Routes under base_url that call the model. One dialect is one method here and one pure module."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rlctl.gateway import chat, completions
from rlctl.gateway import tools as tool_syntax
from rlctl.gateway.calls import Calls, Outcome
from rlctl.gateway.faults import bad
from rlctl.gateway.http import EVENTS, Request, Response, answer
from rlctl.gateway.sessions import Prompt, Session
from rlctl.gateway.template import ChatTemplate, TemplateError
from rlctl.gateway.trajectories import Live, Turn
from rlctl.wire.arrays import pack_ids, unpack_ids

MODEL = "policy"
"""The one model; requests may call it what they like."""


class ModelRoutes:
    """chat/completions, completions, models."""

    def __init__(self, calls: Calls, template: ChatTemplate) -> None:
        self.calls = calls
        self.template = template
        self.parser = tool_syntax.FAMILIES[tool_syntax.family_of(template.source)]

    async def models(self, request: Request) -> Response:
        return answer({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "rlctl"}]})

    async def chat(self, request: Request) -> Response:
        calls = self.calls
        call = chat.parse(request.body, calls.limits)

        def render(messages: Any) -> str:
            started = time.perf_counter()
            try:
                return self.template.render(messages, call.tools, call.options)
            finally:
                calls.counts.seconds["template"] += time.perf_counter() - started

        def place(session: Session) -> Prompt:
            try:
                return session.chat_prompt(call.messages, call.setting, render, calls.codec)
            except TemplateError as error:
                raise bad(str(error), "messages", "template_error") from None

        outcome = await self._once(
            request,
            lambda live: calls.run(live, place, call.sampling, lambda text: chat.message(call, text, self.parser)),
        )
        uid = f"chatcmpl-{request.uid}-{outcome.number}"
        rest = (call, uid, outcome.created, outcome.prompt_tokens, outcome.sampled, outcome.messages, self._token)
        return Response(kind=EVENTS, events=chat.chunks(*rest)) if call.stream else Response(chat.reply(*rest))

    async def completions(self, request: Request) -> Response:
        calls = self.calls
        call = completions.parse(request.body, calls.limits, calls.codec.vocabulary)

        def place(session: Session) -> Prompt:
            if isinstance(call.prompt, str):
                return session.text_prompt(call.prompt, calls.codec)
            return session.ids_prompt(pack_ids(call.prompt))

        outcome = await self._once(request, lambda live: calls.run(live, place, call.sampling, lambda text: None))
        uid = f"cmpl-{request.uid}-{outcome.number}"
        rest = (call, uid, outcome.created, unpack_ids(outcome.prompt).tolist(), outcome.sampled, self._token)
        chunked = completions.chunks(*rest) if call.stream else None
        return Response(kind=EVENTS, events=chunked) if chunked else Response(completions.reply(*rest))

    async def _once(self, request: Request, run: Callable[[Live], Awaitable[Outcome]]) -> Outcome:
        """Run the call, or give a retry the answer of the call it repeats.

        The same bytes again are a retry when the client says so (OpenAI's clients count theirs in
        x-stainless-retry-count), or when its first connection closed before the answer was out. Otherwise they ask for
        another sample: agents do that on purpose.
        """
        live = self.calls.trajectories.open(request.uid, request.prompt_uid)
        key = hash((request.scope["path"], request.body))
        turn = live.turns.get(key)
        if turn is not None and (turn.undelivered() or request.header(b"x-stainless-retry-count") not in ("", "0")):
            self.calls.counts.replays += 1
        else:
            turn = live.turns[key] = Turn(asyncio.get_running_loop().create_future(), request.client_gone)
            await self._answer(live, key, turn, run)
        watch, gone = request.client_gone, True
        turn.undelivered = watch
        try:
            outcome: Outcome = await asyncio.shield(turn.outcome)
            await self.calls.kept(outcome)
            gone = watch()
        finally:
            if turn.undelivered == watch:
                turn.undelivered = _gone if gone else _delivered
        return outcome

    async def _answer(self, live: Live, key: int, turn: Turn, run: Callable[[Live], Awaitable[Outcome]]) -> None:
        """Run the call and settle `turn`; a failed call is forgotten, so that it may be tried again."""
        try:
            turn.outcome.set_result(await run(live))
        except Exception as error:
            turn.outcome.set_exception(error)
            if live.turns.get(key) is turn:
                del live.turns[key]

    def _token(self, token_id: int) -> str:
        return self.calls.codec.decode([token_id])


def _delivered() -> bool:
    return False


def _gone() -> bool:
    return True
