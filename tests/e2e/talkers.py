"""Random agents: each has one conversation by its seed, and knows which earlier answer each of its calls continues."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import openai
from anthropic import BadRequestError as AnthropicBadRequest

from tests.e2e.dialects import AGAIN, LOOK, Answer, Ask, Clients, Message, ask
from tests.e2e.taught import MOVE, WORDS

CHAT = ("chat", "responses", "messages")


@dataclass
class Notes:
    """What the agents did and got."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    """(trajectory, step_index) of every choice a client got."""
    continued: dict[tuple[str, int], int] = field(default_factory=dict)
    """Calls that continue an answer as it was given: (trajectory, step_index) -> that answer's step_index."""
    said: dict[tuple[str, int], str] = field(default_factory=dict)
    """What the client was told, by step."""
    ids: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """Token ids where the client got them."""
    done: Counter[str] = field(default_factory=Counter)
    """How often what was done."""


class Talker:
    """One conversation."""

    def __init__(self, clients: Clients, base_url: str, uid: str, seed: int, notes: Notes) -> None:
        self.clients, self.uid, self.notes = clients.of(base_url), uid, notes
        self.dice = random.Random(seed)
        self.tools = [MOVE] if self.dice.random() < 0.5 else []
        self.history: list[Message] = []
        self.last: tuple[int, str] | None = None
        """Step that the history ends in, and its id, while it stands there as it was said."""
        self.dialect = self.dice.choice(CHAT)

    def chance(self, share: float, what: str) -> bool:
        """Whether to do `what` now; counted."""
        hit = self.dice.random() < share
        self.notes.done[what] += hit
        return hit

    async def talk(self) -> None:
        if self.chance(0.15, "raw"):
            return await self.complete_raw()
        if self.chance(0.3, "system"):
            self.history.append({"role": "system", "content": "Walk."})
        for _ in range(self.dice.randint(1, 6)):
            before = len(self.history)
            self.listen()
            await self.turn(len(self.history) - before)
        return None

    def listen(self) -> None:
        """What the world says to the last answer."""
        calls = self.history[-1].get("tool_calls") if self.history else None
        for call in calls or ():
            self.notes.done["tool result"] += 1
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.dice.choice(WORDS)})
        if not calls or self.dice.random() < 0.5:
            words = "".join(self.dice.choices(WORDS, k=self.dice.randint(1, 4)))
            self.history.append({"role": "user", "content": words})

    async def turn(self, news: int) -> None:
        if self.chance(0.2, "another dialect"):
            self.dialect = self.dice.choice(CHAT)
        if self.chance(0.03, "other tools"):
            self.tools = [LOOK, MOVE]
            self.last = None
        call = self.call(news)
        self.notes.done[f"{call.dialect}{' streamed' if call.stream else ''}"] += 1
        try:
            answers = await self.asked(call)
        except (openai.BadRequestError, AnthropicBadRequest) as error:
            assert "maximum context length" in str(error), error
            self.compact()
            return
        answer = self.dice.choice(answers)
        await self.aside()
        choice = self.dice.randrange(len(answer.messages))
        message = dict(answer.messages[choice])
        self.last = answer.number + choice, answer.uid if len(answer.messages) == 1 else ""
        if message["content"] and self.chance(0.08, "rewritten"):
            message["content"] += " (edited)"
            self.last = None
        self.history.append(message)

    def call(self, news: int) -> Ask:
        call = Ask(self.dialect, list(self.history), self.tools, stream=self.dice.random() < 0.4)
        call.max_tokens = self.dice.choice([1, 3, 24, 72, 72, 72])
        call.temperature = self.dice.choice([1.0, 1.0, 0.7])
        if self.dialect != "responses" and self.chance(0.1, "stop"):
            call.stop = ["t", "東"]
        if self.dialect == "chat" and self.chance(0.15, "n"):
            call.n = self.dice.choice([2, 3])
        if self.dialect == "responses" and self.last and self.last[1].startswith("resp_"):
            call.previous, call.news = (self.last[1], news) if self.chance(0.4, "previous_response_id") else ("", 0)
        return call

    async def asked(self, call: Ask) -> list[Answer]:
        """The answer; now and then the client hangs up first, asks again, or asks for several at once."""
        if self.chance(0.06, "hung up"):
            try:
                return [self.noted(await asyncio.wait_for(ask(self.clients, call), self.dice.random() * 0.03))]
            except TimeoutError:
                return [self.noted(await ask(self.clients, replace(call, headers=AGAIN)))]
        if self.chance(0.06, "parallel"):
            both = await asyncio.gather(*(ask(self.clients, call) for _ in range(2)))
            return [self.noted(one) for one in both]
        answer = self.noted(await ask(self.clients, call))
        if self.chance(0.08, "retried"):
            again = await ask(self.clients, replace(call, headers=AGAIN))
            assert (again.uid, again.messages) == (answer.uid, answer.messages), "a retry gets the same answer"
        return [answer]

    def noted(self, answer: Answer) -> Answer:
        for i, message in enumerate(answer.messages):
            key = self.uid, answer.number + i
            self.notes.acknowledged.add(key)
            self.notes.said[key] = visible(message)
            self.notes.done["empty answer"] += not message["content"] and not message.get("tool_calls")
            self.notes.done["tool call"] += bool(message.get("tool_calls"))
            if self.last is not None:
                self.notes.continued[key] = self.last[0]
        return answer

    async def aside(self) -> None:
        """A sub-agent, with a context of its own."""
        if self.chance(0.05, "sub-agent"):
            last, self.last = self.last, None
            question = [{"role": "system", "content": "Sub."}, {"role": "user", "content": self.dice.choice(WORDS)}]
            self.noted(await ask(self.clients, Ask(self.dice.choice(CHAT), question, self.tools)))
            self.last = last

    def compact(self) -> None:
        """The context is full: go on with a summary."""
        self.notes.done["compacted"] += 1
        self.history = [{"role": "user", "content": "So far: nothing."}]
        self.last = None

    # ------------------------------------------------------------ raw completions

    async def complete_raw(self) -> None:
        """By token ids, every next prompt extends the last; or by text."""
        ids, text = self.dice.random() < 0.6, "".join(self.dice.choices(WORDS, k=2))
        prompt: Any = [self.dice.randrange(200) for _ in range(5)] if ids else text
        for _ in range(self.dice.randint(1, 6)):
            stream = self.dice.random() < 0.4
            self.notes.done[f"completions{' streamed' if stream else ''}"] += 1
            try:
                choices, number = await self.completed(prompt, stream, 2 if self.chance(0.1, "n") else 1)
            except openai.BadRequestError as error:
                assert "maximum context length" in str(error), error
                return
            pick = self.dice.randrange(len(choices))
            sampled, text = choices[pick]
            self.last = number + pick, ""
            prompt = prompt + sampled + [self.dice.randrange(200)] if ids else prompt + text + self.dice.choice(WORDS)
            if not ids:
                self.last = None  # by text an end token cannot be repeated

    async def completed(self, prompt: Any, stream: bool, n: int) -> tuple[list[tuple[list[int], str]], int]:
        fields = {"model": "m", "prompt": prompt, "max_tokens": 20, "n": n}
        asked = self.clients[0].completions.create(**fields, stream=stream, extra_body={"return_token_ids": True})
        found: list[tuple[list[int], str]] = [([], "") for _ in range(n)]
        for chunk in [one async for one in await asked] if stream else [await asked]:
            uid = chunk.id
            for choice in chunk.choices:
                ids, text = found[choice.index]
                found[choice.index] = ids + (choice.token_ids or []), text + choice.text
        number = int(uid.rpartition("-")[2])
        for i, (ids, text) in enumerate(found):
            key = self.uid, number + i
            self.notes.acknowledged.add(key)
            self.notes.said[key], self.notes.ids[key] = text, tuple(ids)
            if self.last is not None:
                self.notes.continued[key] = self.last[0]
        return found, number


def visible(message: Message) -> str:
    """What tells two answers apart for a client that sends them back."""
    calls = [
        (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls", ())
    ]
    return json.dumps([message["content"], calls], sort_keys=True)


async def converse(
    clients: Clients, seeds: list[int], at_once: int, base_url: Callable[[str], str], end: Any, notes: Notes
) -> None:
    """All of them, `at_once` at any time; `end(uid)` completes a trajectory."""
    waiting = iter(seeds)

    async def one_after_another() -> None:
        for seed in waiting:
            uid = f"t{seed}"
            await Talker(clients, base_url(uid), uid, seed, notes).talk()
            await end(uid)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(one_after_another())
