"""TensorBoard: event files in `RUN/trackers/tensorboard` (`tensorboard --logdir runs` finds those of all runs)."""

from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rlctl.trackers.tracker import About, Picture, Row

RGB = 3
"""TensorBoard's number for the colour space."""


class TensorBoard:
    """Scalars, and animations as images: browsers play a GIF wherever they show one."""

    def __init__(self, about: About) -> None:
        self._writer = EventFileWriter(str(about.folder))

    def row(self, row: Row) -> None:
        self._add(row.step, row.at, [Summary.Value(tag=tag, simple_value=v) for tag, v in row.values.items()])

    def picture(self, picture: Picture) -> None:
        with Image.open(picture.gif) as image:
            width, height = image.size
        shown = Summary.Image(height=height, width=width, colorspace=RGB, encoded_image_string=picture.gif.read_bytes())
        self._add(picture.step, picture.at, [Summary.Value(tag=picture.tag, image=shown)])

    def _add(self, step: int, at: float, values: list[Summary.Value]) -> None:
        self._writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=values)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
