"""Which known step does this request extend? Pure: no clock, no network.

A session is one trajectory: a tree of nodes, one node per answered model call. A prompt that begins with what a node
already covers is not encoded again; its ids are

    context(node) = prompt ids the engine saw + ids it sampled        (exact, never re-encoded)
    prompt        = context(node) + encode(text after the answer)

An answer is recognised by its messages (chain of digests), and then the template must agree: the text rendered now must
begin with the text of the node's prompt followed by its answer. Our own answers go into the template as the raw text
that was sampled, so a tool call parsed for the client and sent back is again what the model wrote. If the response
ended in the control token that the template writes there too, it is not doubled; if it was cut, the template's own end
of turn is encoded as prompt.

An image is one placeholder in the text and in the ids that are sent; the engine puts as many in its place as the image
has tokens. Both are kept: `context` is what is sent on, `seen` what the engine computed with and the Step records.

Where that fails the trajectory forks, with a reason on the step:

    template            the template renders known history differently (drops old thinking, refuses it)
    setting             tools or template options have changed, and with them the text
    cut_history         a context window: the first answers are left out, those that remain are ours
    rewritten_history   the client changed known history, or went back behind an answer of ours
    new_conversation    nothing in common with known answers: a sub-agent, or a compacted context
    parallel            the same prefix is being sampled more than once
    restart             the first call after a restart of the gateway, which does not know the earlier ones
    choice              a further choice of one request with n > 1
    end_token           (raw completions) the prompt leaves out the end token that the model sampled
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from rlctl.gateway.text import images
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.template import Message, TemplateError

Render = Callable[[Sequence[Message]], str]
_sorted_json = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True, eq=False)
class Node:
    """One answered call."""

    index: int
    """Its step_index."""
    parent: "Node | None"
    prompt: bytes
    """int32: prompt ids after the parent's context."""
    response: bytes
    """int32: sampled ids."""
    text: str
    """Shielded text of the whole prompt; empty when the client gave ids."""
    answer: str
    """Shielded text of the response without its end token."""
    messages: list[Message]
    """The conversation as it went into the template; empty for raw completions."""
    setting: Hashable = ""
    children: int = 0
    """Calls that extend this answer, answered or not."""
    running: int = 0
    """Those of them that have no answer yet."""
    lead: str = ""
    """End of `text` that belongs to the assistant's turn: words put into the model's mouth (a required tool call)."""
    expanded: bytes | None = None
    """`prompt` with the images' tokens; None: it has no images."""
    images: tuple[str, ...] = ()
    """Names of all images of the conversation, in its order."""

    def context(self) -> bytes:
        """int32 ids from the start of the sequence to the end of this response, as they are sent on."""
        parts: list[bytes] = []
        node: Node | None = self
        while node is not None:
            parts += (node.response, node.prompt)
            node = node.parent
        return b"".join(reversed(parts))

    def seen(self) -> bytes:
        """The same as the engine saw it: with the images' tokens."""
        parts: list[bytes] = []
        node: Node | None = self
        while node is not None:
            parts += (node.response, node.prompt if node.expanded is None else node.expanded)
            node = node.parent
        return b"".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request, placed in the tree."""

    parent: Node | None
    new: bytes
    """int32 ids after the parent's context: Step.prompt_ids."""
    ids: bytes
    """int32 ids that the engine gets: context(parent) + new."""
    text: str
    messages: list[Message]
    key: int
    """Digest of the conversation asked for."""
    fork: str
    """Reason for not extending the tip, or ''."""
    setting: Hashable = ""
    """What else shapes the text: tools, template options."""
    lead: str = ""
    """As in Node."""
    images: tuple[str, ...] = ()
    """As in Node."""

    @property
    def new_images(self) -> list[str]:
        """Those after the parent's."""
        return list(self.images[len(self.parent.images) if self.parent else 0 :])

    @property
    def asked(self) -> int:
        """The same for two requests for the same text."""
        return hash((self.key, self.setting))


@dataclass(slots=True, eq=False)
class Session:
    """The tree of one trajectory."""

    uid: str
    prompt_uid: str = ""
    nodes: list[Node] = field(default_factory=list)
    next_index: int = 0
    resumed: bool = False
    """It has earlier Steps that this gateway does not know: it was restarted since."""
    _answers: dict[int, Node] = field(default_factory=dict)
    _said: dict[Hashable, int] = field(default_factory=dict)
    """Digest of every answer as the client got it -> how many answers stood before it (the most there were)."""
    _asked: dict[int, int] = field(default_factory=dict)
    """How often each text is being, or has been, asked for."""

    # ------------------------------------------------------------ prompts

    def chat_prompt(
        self, messages: list[Message], setting: Hashable, render: Render, codec: Codec, lead: str = ""
    ) -> Prompt:
        """Place a conversation; `setting` stands for all else that shapes the text (tools, template options), `lead`
        is what the answer is made to begin with.
        """
        keys = _chain(messages)
        known, at = self._longest_known(messages, keys)
        node, reason, conversation, text = None, "", [], ""
        if known is not None:
            answer = {"role": "assistant", "content": known.lead + known.answer}
            conversation = [*known.messages, answer, *codec.shield(messages[at:])]
            node, text = _extended(known, conversation, render)
            if node is not known:
                reason = "template" if known.setting == setting else "setting"
        if node is None:
            conversation = codec.shield(messages)
            text = render(conversation)
        if any(message["role"] == "assistant" for message in messages[at:]):
            reason = "cut_history" if not at and self._cut(messages) else "rewritten_history"
        text += lead
        new = _after(node, text, codec) if node else codec.encode(text)
        pictures = images.names(conversation)
        return self._placed(Prompt(node, new, b"", text, conversation, keys[-1], reason, setting, lead, pictures))

    def text_prompt(self, text: str, codec: Codec) -> Prompt:
        """Place a raw text prompt (completions)."""
        node, reason = None, ""
        for one in sorted(self.nodes, key=lambda n: len(n.text) + len(n.answer), reverse=True):
            if one.text and not one.images and _begins(text, one):
                end = _end_text(one, codec)
                if text.startswith(end, len(one.text) + len(one.answer)):
                    node = one
                    break
                reason = "end_token"
        new = _after(node, text, codec) if node else codec.encode_raw(text)
        return self._placed(Prompt(node, new, b"", text, [], hash(text), "" if node else reason))

    def ids_prompt(self, ids: bytes) -> Prompt:
        """Place a prompt of ids (completions, int32)."""
        node, covered = None, b""
        for one in self.nodes:
            context = one.context()
            if not one.images and len(context) > len(covered) and ids.startswith(context):
                node, covered = one, context
        return self._placed(Prompt(node, ids[len(covered) :], ids, "", [], hash(ids), ""))

    def _longest_known(self, messages: list[Message], keys: list[int]) -> tuple[Node | None, int]:
        for end in range(len(messages), 0, -1):
            if messages[end - 1]["role"] == "assistant" and (node := self._answers.get(keys[end])):
                return node, end
        return None, 0

    def _cut(self, messages: list[Message]) -> bool:
        """Whether all answers in it are ours as they were, and answers before the first of them are left out."""
        before = [self._said.get(_digest(message), -1) for message in messages if message["role"] == "assistant"]
        return before[0] > 0 and min(before) >= 0

    def _placed(self, prompt: Prompt) -> Prompt:
        parent = prompt.parent
        reason = prompt.fork
        if self._asked.get(prompt.asked):
            reason = "parallel"
        elif not reason and parent is not None and parent.children:
            reason = "parallel" if parent.running else "rewritten_history"
        elif not reason and parent is None and (self._asked or self.nodes):
            reason = "new_conversation"
        elif not reason and parent is None and self.resumed:
            reason = "restart"
        ids = prompt.ids or (parent.context() if parent else b"") + prompt.new
        return Prompt(
            parent, prompt.new, ids, prompt.text, prompt.messages, prompt.key, reason, prompt.setting, prompt.lead,
            prompt.images,
        )  # fmt: skip

    # ------------------------------------------------------------ life of a call

    def reserve(self, prompt: Prompt, count: int = 1) -> int:
        """Take `count` step indices for a call that starts now; the first of them."""
        first = self.next_index
        self.next_index += count
        self._asked[prompt.asked] = self._asked.get(prompt.asked, 0) + 1
        if prompt.parent:
            prompt.parent.children += 1
            prompt.parent.running += 1
        return first

    def release(self, prompt: Prompt, first: int, count: int = 1) -> list[int]:
        """The call failed. Its indices go back; those that a later call has already passed are returned (holes)."""
        self._finish(prompt)
        self._asked[prompt.asked] -= 1
        if not self._asked[prompt.asked]:
            del self._asked[prompt.asked]
        if prompt.parent:
            prompt.parent.children -= 1
        if first + count == self.next_index:
            self.next_index = first
            return []
        return list(range(first, first + count))

    def commit(
        self,
        prompt: Prompt,
        first: int,
        answers: Sequence[tuple[bytes, str, Message | None]],
        expanded: bytes | None = None,
    ) -> list[Node]:
        """The call was answered: (response ids, shielded text, message given to the client) for each choice."""
        self._finish(prompt)
        nodes = []
        for offset, (response, answer, message) in enumerate(answers):
            node = Node(
                first + offset,
                prompt.parent,
                prompt.new,
                response,
                prompt.text,
                answer,
                prompt.messages,
                prompt.setting,
                lead=prompt.lead,
                expanded=expanded,
                images=prompt.images,
            )
            self.nodes.append(node)
            nodes.append(node)
            if message is not None:
                given = normalised([message])[0]
                self._known_as(node, prompt.key, given)
                if given.pop("reasoning_content", None):  # most clients do not send it back
                    self._known_as(node, prompt.key, given)
        return nodes

    def _known_as(self, node: Node, key: int, given: Message) -> None:
        """The answer as the client may send it back."""
        digest = _digest(given)
        self._answers[hash((key, digest))] = node
        before = sum(message["role"] == "assistant" for message in node.messages)
        self._said[digest] = max(before, self._said.get(digest, 0))

    def _finish(self, prompt: Prompt) -> None:
        if prompt.parent:
            prompt.parent.running -= 1


def _begins(text: str, node: Node) -> bool:
    return text.startswith(node.text) and text.startswith(node.answer, len(node.text))


def _extended(known: Node, conversation: list[Message], render: Render) -> tuple[Node | None, str]:
    """The nearest ancestor of `known` (itself first) whose text the rendered conversation begins with."""
    try:
        text = render(conversation)
    except TemplateError:
        return None, ""
    node: Node | None = known
    while node is not None and not _begins(text, node):
        node = node.parent
    return node, text


def _end_text(node: Node, codec: Codec) -> str:
    """Text of the control token that the response ended in, or ''."""
    return codec.special.get(int.from_bytes(node.response[-4:], "little"), "") if node.response else ""


def _after(node: Node, text: str, codec: Codec) -> bytes:
    """Ids of what follows the node's answer in `text`, without the end token that was sampled."""
    start = len(node.text) + len(node.answer)
    end = _end_text(node, codec)
    if end and text.startswith(end, start):
        start += len(end)
    return codec.encode(text[start:])


def _chain(messages: Sequence[Message]) -> list[int]:
    """Digest of every prefix: `keys[i]` stands for `messages[:i]`."""
    keys = [0]
    for message in messages:
        keys.append(hash((keys[-1], _digest(message))))
    return keys


def _digest(message: Message) -> Hashable:
    """What makes two messages the same; ids of our own tool calls and null fields do not."""
    calls = tuple(
        (call["function"]["name"], _sorted_json(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    )
    content = message.get("content") or ""
    if isinstance(content, list):
        content = tuple((part["type"], part.get("text") or part.get("name")) for part in content)
    return (
        message["role"],
        content,
        calls,
        message.get("tool_call_id"),
        message.get("name"),
        message.get("reasoning_content") or message.get("reasoning") or "",
    )
