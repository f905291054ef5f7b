"""The images of conversations: checked once, then files of the run, RUN/images/SHA256.KIND.

A Step names its images. They are on disk before the engine is asked, so no Step in the pool names a file that is not
there. They stay as long as the run directory does: trajectories, exports and later turns name them, each file is there
once however often it is sent, and what is written once is never written again.
"""

import asyncio
import io
import os
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from rlctl.gateway.faults import Fault, bad
from rlctl.gateway.text.images import KINDS


class Pictures:
    """Files in `folder`; none has more than `most_pixels`."""

    def __init__(self, folder: Path, most_pixels: int) -> None:
        self.folder = folder
        self.most_pixels = most_pixels

    async def keep(self, images: dict[str, bytes]) -> None:
        """Check and write those that are not there yet.

        Fault 400 for what is no image of its media type, 500 when the disk does not take it (full, no permission).
        """
        if new := {name: content for name, content in images.items() if not (self.folder / name).exists()}:
            try:
                await asyncio.to_thread(self._keep, new)
            except OSError as error:
                where = f"images of a run stay in {self.folder}, and one cannot be written"
                raise Fault(500, f"{where}: {error.strerror or error}", "image_not_kept") from None

    async def read(self, names: Sequence[str]) -> list[bytes]:
        """Contents by name; Fault 500 when somebody has deleted one."""
        try:
            return await asyncio.to_thread(lambda: [(self.folder / name).read_bytes() for name in names])
        except OSError as error:
            raise Fault(500, f"an image of this trajectory cannot be read: {error}", "image_lost") from None

    def _keep(self, images: dict[str, bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, content in images.items():
            check(content, name.rpartition(".")[2], self.most_pixels)
            draft = self.folder / f".{uuid.uuid4().hex}"  # another worker may be writing the same one
            try:
                with draft.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                draft.rename(self.folder / name)
            finally:
                draft.unlink(missing_ok=True)


def check(content: bytes, kind: str, most_pixels: int) -> None:
    """Fault 400 unless `content` is one whole image of this kind with at most `most_pixels` (width times height).

    The size is read from the header before anything is decoded: a small file that unpacks to many pixels costs nothing.
    """
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=[kind]) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            width, height = image.size
            if width * height > most_pixels:
                size = f"{width} x {height} = {width * height} pixels"
                raise bad(f"an image has {size}; {most_pixels} are the most (gateway.max_image_pixels)", "messages")
            if getattr(image, "n_frames", 1) > 1:
                raise bad("an image is an animation; send its frames as images", "messages")
            image.load()
    except Image.DecompressionBombError:
        raise bad(f"an image has more than {most_pixels} pixels (gateway.max_image_pixels)", "messages") from None
    except UnidentifiedImageError:
        media = next(media for media, name in KINDS.items() if name == kind)
        raise bad(f"an image is not what its media type {media} says", "messages") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow raises for broken files
        raise bad(f"an image cannot be decoded: {error}", "messages") from None
