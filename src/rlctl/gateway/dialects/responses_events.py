"""OpenAI responses as server-sent events: items that begin, grow and end, every event numbered."""

from collections.abc import Iterator
from typing import Any

from rlctl.gateway.dialects.anthropic import named
from rlctl.gateway.dialects.responses import ResponsesCall, function_item, message_item, reasoning_item, response
from rlctl.gateway.faults import Fault
from rlctl.gateway.sampling import Begun, Outcome, Part
from rlctl.gateway.text.speech import Piece

_NAMES = {"reasoning": "reasoning_text", "content": "output_text"}


class Events:
    """Writes one response."""

    def __init__(self, call: ResponsesCall, uid: str, tokens: Any) -> None:
        self._call, self._trajectory = call, uid
        self._number = -1
        self._output: list[dict[str, Any]] = []
        """Items that have ended."""
        self._kind, self._text = "", ""
        """Of the item that grows: reasoning or content, and what of it is out."""

    def begin(self, begun: Begun) -> Iterator[bytes]:
        self._uid, self._created = f"resp_{self._trajectory}-{begun.number}", begun.created
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=response(self._call, self._uid, self._created, None))

    def piece(self, part: Part, pieces: list[Piece]) -> Iterator[bytes]:
        for kind, text in pieces:
            yield from self._open(kind)
            self._text += text
            more: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
            yield self._event(f"response.{_NAMES[kind]}.delta", **self._place, content_index=0, delta=text, **more)

    def end(self, outcome: Outcome, rests: list[list[Piece]]) -> Iterator[bytes]:
        given = outcome.messages[0]
        yield from self.piece(Part(0, "", [], []), rests[0])
        if not given.get("tool_calls"):
            yield from self._open("content")
        yield from self._close()
        for call in given.get("tool_calls") or ():
            yield from self._function(function_item(call))
        whole = response(self._call, self._uid, self._created, outcome)
        whole["output"] = self._output
        name = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        yield self._event(name, response=whole)

    def fault(self, fault: Fault) -> Iterator[bytes]:
        yield self._event("error", code=fault.code, message=str(fault), param=fault.param or None)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._number += 1
        return named(name, {"sequence_number": self._number, **fields})

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item()["id"], "output_index": len(self._output)}

    def _item(self) -> dict[str, Any]:
        return (reasoning_item if self._kind == "reasoning" else message_item)(self._uid, self._text)

    def _open(self, kind: str) -> Iterator[bytes]:
        if kind == self._kind:
            return
        yield from self._close()
        self._kind, self._text = kind, ""
        item = self._item()
        part = item["content"][0]
        begun = {**item, "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=len(self._output), item=begun)
        yield self._event("response.content_part.added", **self._place, content_index=0, part=part)

    def _close(self) -> Iterator[bytes]:
        if not self._kind:
            return
        item, name = self._item(), f"response.{_NAMES[self._kind]}.done"
        more: dict[str, Any] = {"logprobs": []} if self._kind == "content" else {}
        yield self._event(name, **self._place, content_index=0, text=self._text, **more)
        yield self._event("response.content_part.done", **self._place, content_index=0, part=item["content"][0])
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._kind = ""

    def _function(self, item: dict[str, Any]) -> Iterator[bytes]:
        index, arguments = len(self._output), item["arguments"]
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._output.append(item)
