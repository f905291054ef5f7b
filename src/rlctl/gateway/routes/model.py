"""Routes under base_url that call the model. One dialect is one method here, and a pure module or two."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rlctl.gateway.calls import Calls
from rlctl.gateway.dialects import anthropic, chat, completions, responses, responses_events
from rlctl.gateway.dialects.chat import ChatCall
from rlctl.gateway.dialects.streaming import Feed, Writer, events
from rlctl.gateway.door.http import EVENTS, Request, Response, answer
from rlctl.gateway.faults import Fault, bad, unsupported
from rlctl.gateway.sampling import Outcome, Sampling
from rlctl.gateway.sessions.session import Prompt, Session
from rlctl.gateway.sessions.trajectories import Live, Turn
from rlctl.gateway.text import speech
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.speech import Speech, Teller
from rlctl.gateway.text.template import ChatTemplate, Message, TemplateError
from rlctl.wire.arrays import pack_ids

MODEL = "policy"
"""The one model; requests may call it what they like."""
Run = Callable[[Live, Feed | None], Awaitable[Outcome]]


class ModelRoutes:
    """chat/completions, completions, responses, messages, messages/count_tokens, models."""

    def __init__(self, calls: Calls, template: ChatTemplate) -> None:
        self.calls = calls
        self.template = template
        self.speech = speech.of_model(template.source)

    async def models(self, request: Request) -> Response:
        return answer({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "rlctl"}]})

    async def chat(self, request: Request) -> Response:
        call = chat.parse(request.body, self.calls.limits, self.speech)
        run = self._conversation(call)
        if call.stream:
            return await self._stream(request, run, chat.Events(call, request.uid, self._token), call.speech)
        outcome = await self._once(request, run)
        uid = f"chatcmpl-{request.uid}-{outcome.number}"
        return Response(chat.reply(call, uid, outcome, self._token))

    async def messages(self, request: Request) -> Response:
        call = anthropic.parse(request.body, self.calls.limits, self.speech)
        run = self._conversation(call)
        if call.stream:
            return await self._stream(request, run, anthropic.Events(call, request.uid, self._token), call.speech)
        outcome = await self._once(request, run)
        return Response(anthropic.reply(call, f"msg_{request.uid}-{outcome.number}", outcome, self._token))

    async def count_tokens(self, request: Request) -> Response:
        """Of the prompt as it would be placed now; nothing is begun."""
        call = anthropic.parse(request.body, self.calls.limits, self.speech, counting=True)
        if call.images:
            raise unsupported("messages", "how many tokens an image has only the engine knows: see an answer's usage")
        live = self.calls.trajectories.peek(request.uid)
        prompt = self._place(call, live.session if live else Session(request.uid))
        return answer({"input_tokens": len(prompt.ids) // 4})

    async def responses(self, request: Request) -> Response:
        before, earlier = responses.previous(request.body), []
        if before:
            live = self.calls.trajectories.peek(request.uid)
            if live is None or before not in live.responses:
                raise Fault(404, f"no response {before} in this trajectory", "not_found", "previous_response_id")
            earlier = live.responses[before]
        call = responses.parse(request.body, self.calls.limits, self.speech, earlier)
        converse = self._conversation(call)

        async def run(live: Live, feed: Feed | None) -> Outcome:
            outcome = await converse(live, feed)
            if call.request.store is not False:
                said: list[Message] = [*call.conversation, *normalised(outcome.messages)]
                live.responses[f"resp_{request.uid}-{outcome.number}"] = said
            return outcome

        if call.stream:
            writer = responses_events.Events(call, request.uid, self._token)
            return await self._stream(request, run, writer, call.speech)
        outcome = await self._once(request, run)
        return Response(responses.reply(call, f"resp_{request.uid}-{outcome.number}", outcome, self._token))

    async def completions(self, request: Request) -> Response:
        calls = self.calls
        call = completions.parse(request.body, calls.limits, calls.codec.vocabulary)

        def place(session: Session) -> Prompt:
            if isinstance(call.prompt, str):
                return session.text_prompt(call.prompt, calls.codec)
            return session.ids_prompt(pack_ids(call.prompt))

        def run(live: Live, feed: Feed | None) -> Awaitable[Outcome]:
            return calls.run(live, place, call.sampling, lambda prompt, text: None, feed)

        if call.stream:
            return await self._stream(request, run, completions.Events(call, request.uid, self._token), Speech())
        outcome = await self._once(request, run)
        uid = f"cmpl-{request.uid}-{outcome.number}"
        return Response(completions.reply(call, uid, outcome, self._token))

    # ------------------------------------------------------------ conversations

    def _conversation(self, call: ChatCall) -> Run:
        asked: Sampling = call.sampling

        def answered(prompt: str, text: str) -> Message:
            return speech.message(text, speech.after(call.speech, prompt))

        async def run(live: Live, feed: Feed | None) -> Outcome:
            if call.images:
                await self.calls.pictures.keep(call.images)
            return await self.calls.run(live, lambda session: self._place(call, session), asked, answered, feed)

        return run

    def _place(self, call: ChatCall, session: Session) -> Prompt:
        def render(messages: Any) -> str:
            started = time.perf_counter()
            try:
                return self.template.render(messages, call.tools, call.switches)
            finally:
                self.calls.counts.seconds["template"] += time.perf_counter() - started

        try:
            return session.chat_prompt(call.messages, call.setting, render, self.calls.codec, call.speech.lead)
        except TemplateError as error:
            raise bad(str(error), "messages", "template_error") from None

    # ------------------------------------------------------------ one answer per turn

    async def _once(self, request: Request, run: Run) -> Outcome:
        """Run the call, or give a retry the answer of the call it repeats."""
        turn, fresh = self._turn(request)
        if fresh:
            await self._answer(turn, fresh, run)
        watch, gone = request.client_gone, True
        turn.undelivered = watch
        try:
            outcome = await self._kept(turn)
            gone = watch()
        finally:
            if turn.undelivered == watch:
                turn.undelivered = _gone if gone else _delivered
        return outcome

    async def _stream(self, request: Request, run: Run, writer: Writer, how: Speech) -> Response:
        """The same as events. A call that fails before it has said anything is an error like any other."""
        turn, fresh = self._turn(request)
        if fresh:
            turn.feed = Feed()
            self.calls.background(self._answer(turn, fresh, run))
        feed: Feed = turn.feed
        turn.undelivered = watch = request.client_gone
        await feed.news(0)
        if not feed.parts:
            await asyncio.shield(turn.outcome)

        async def told() -> Any:
            gone = True
            prompt = self.calls.codec.decode(memoryview(feed.begun.prompt[-64:]).cast("i")) if feed.begun else ""
            begun = speech.after(how, prompt)
            try:
                async for event in events(feed, lambda: self._kept(turn), writer, lambda: Teller(begun)):
                    yield event
                gone = watch()
                if not gone:
                    feed.shrink()
            finally:
                if turn.undelivered == watch:
                    turn.undelivered = _gone if gone else _delivered

        return Response(kind=EVENTS, events=told())

    def _turn(self, request: Request) -> tuple[Turn, Live | None]:
        """The turn that this request repeats, or a new one with the trajectory it has to run in.

        The same bytes again are a retry when the client says so (its SDK counts them in x-stainless-retry-count), or
        when its first connection closed before the answer was out. Otherwise they ask for another sample: agents do
        that on purpose.
        """
        live = self.calls.trajectories.open(request.uid, request.prompt_uid)
        key = hash((request.scope["path"], request.body))
        turn = live.turns.get(key)
        if turn is not None and (turn.undelivered() or request.header(b"x-stainless-retry-count") not in ("", "0")):
            self.calls.counts.replays += 1
            return turn, None
        live.forget_turns()
        turn = live.turns[key] = Turn(asyncio.get_running_loop().create_future(), request.client_gone, key)
        return turn, live

    async def _answer(self, turn: Turn, live: Live, run: Run) -> None:
        """Run the call and settle `turn`; a failed call is forgotten, so that it may be tried again."""
        try:
            turn.outcome.set_result(await run(live, turn.feed))
        except Exception as error:
            turn.outcome.set_exception(error)
            turn.outcome.exception()  # a client that has gone does not ask for it
            if live.turns.get(turn.key) is turn:
                del live.turns[turn.key]
        if turn.feed:
            turn.feed.close()

    async def _kept(self, turn: Turn) -> Outcome:
        outcome: Outcome = await asyncio.shield(turn.outcome)
        await self.calls.kept(outcome)
        return outcome

    def _token(self, token_id: int) -> str:
        return self.calls.codec.decode([token_id])


def _delivered() -> bool:
    return False


def _gone() -> bool:
    return True
