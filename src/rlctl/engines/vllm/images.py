"""Images beside token ids: what vLLM's completions endpoint leaves out and its engine takes.

    POST /v1/completions {"prompt": [ids with one placeholder per image], "images": [base64 of a file, ...], ...}
    X-Rlctl-Images: N

The images are taken out of the body, and the prompt that vLLM makes of the ids gets them as its `multi_modal_data`.
vLLM's processor of the model puts the images' tokens in the place of the placeholders; `prompt_token_ids` of the answer
(with `return_token_ids`) are what the model computed with. The answer repeats the header: these images were seen.
"""

import base64
import functools
import io
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

HEADER = b"x-rlctl-images"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Decode = Callable[[bytes], Any]

IMAGES: ContextVar[list[Any] | None] = ContextVar("rlctl_images", default=None)
"""Of the request that is being answered."""


class BadImages(Exception):
    """The body does not bring the images that its header promises."""


def announced(scope: Mapping[str, Any]) -> bool:
    """Whether a request says that it brings images."""
    return any(name == HEADER for name, _ in scope["headers"])


def unpacked(body: bytes, decode: Decode) -> tuple[bytes, list[Any]]:
    """The body without its images, and these; BadImages."""
    try:
        order = json.loads(body)
        images = [decode(base64.b64decode(one, validate=True)) for one in order.pop("images")]
    except Exception as error:  # of decoders there are many kinds
        raise BadImages(f"images cannot be read: {type(error).__name__}: {error}") from error
    if not images:
        raise BadImages("the header promises images, the body has none")
    return json.dumps(order).encode(), images


def replayed(body: bytes, receive: Receive) -> Receive:
    """ASGI `receive` that gives this body, and then what comes after it: a client that hangs up."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaying() -> Message:
        return waiting.pop() if waiting else await receive()

    return replaying


def attach(client: Any) -> bool:
    """Let the engine client's renderer see the images of requests; False where it has none of the kind known here."""
    renderer: Any = getattr(client, "renderer", None)
    if not hasattr(renderer, "render_cmpl_async"):
        return False
    renderer.render_cmpl_async = shown(renderer.render_cmpl_async)
    return True


def shown(render: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`render_cmpl_async` of vLLM's renderer, giving the one prompt of a request its images."""

    @functools.wraps(render)
    def rendered(prompts: Sequence[Mapping[str, Any]], *args: Any, **kwargs: Any) -> Awaitable[Any]:
        if images := IMAGES.get():
            (prompt,) = prompts
            prompts = [{**prompt, "multi_modal_data": {"image": images}}]
        return render(prompts, *args, **kwargs)

    return rendered


def decoded(content: bytes) -> Any:
    """An image as vLLM itself reads one: RGB, transparent parts on white."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        if not image.has_transparency_data:
            return image.convert("RGB")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
