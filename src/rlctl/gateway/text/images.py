"""Images in messages: a client's part -> the template's part and the file it stands for. Pure; nothing is fetched.

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}   ->   {"type": "image", "name": NAME}

NAME is the SHA-256 of the file with its ending. In messages, nodes and Steps an image is its name; its bytes are in the
run's folder (`sessions.pictures`).
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.gateway.faults import bad, unsupported

KINDS = {"image/png": "png", "image/jpeg": "jpeg", "image/webp": "webp", "image/gif": "gif"}
"""What clients may send; the ending of its file, which is Pillow's name of the format as well."""
_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.ASCII | re.IGNORECASE)


@dataclass(slots=True)
class Images:
    """The images of one request."""

    most: int
    """0: this model takes text."""
    found: dict[str, bytes] = field(default_factory=dict)
    """Content by name."""
    count: int = 0
    """Of the whole conversation, so far."""

    def part(self, part: dict[str, Any], where: str) -> dict[str, str]:
        """The template's part for a client's; Fault 400 that says what is wrong with it."""
        given = part.get("image_url")
        given = {"url": given} if isinstance(given, str) else given
        url = given.get("url") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(url, str):
            raise bad(f"{where}.image_url.url must be a data: URL", "messages")
        if (detail := given.get("detail", part.get("detail"))) not in (None, "auto"):
            raise unsupported("messages", f"{where}: detail {detail!r}; how an image is read is the model's own choice")
        self.count += 1
        if self.count > self.most:
            raise bad(f"{where}: at most {self.most} images fit into a conversation (gateway.max_images)", "messages")
        name, content = _read(url, where)
        self.found[name] = content
        return {"type": "image", "name": name}


def _read(url: str, where: str) -> tuple[str, bytes]:
    head = _DATA_URL.match(url)
    if head is None:
        raise unsupported("messages", f"{where}: an image comes as data:MEDIA/TYPE;base64,...: nothing is fetched here")
    kind = KINDS.get(head[1].lower())
    if kind is None:
        raise unsupported("messages", f"{where}: media type {head[1]!r}; there are {', '.join(KINDS)}")
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad(f"{where}: the image is not base64: {error}", "messages") from None
    return f"{hashlib.sha256(content).hexdigest()}.{kind}", content


def names(messages: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Names of the images in a conversation, in its order."""
    lists = (message["content"] for message in messages if isinstance(message.get("content"), list))
    return tuple(part["name"] for parts in lists for part in parts if part["type"] == "image")
