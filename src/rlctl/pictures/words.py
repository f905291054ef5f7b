"""Text as a picture: the frame of an environment without a board, and the caption below a frame."""

import textwrap

from PIL import Image, ImageDraw, ImageFont

WIDTH, MARGIN, SIZE, STEP = 640, 16, 15, 22
COLUMNS, LINES = 78, 28
"""Of one picture; longer text keeps its end, with a mark that something is missing before it."""
PAPER, INK, QUIET, SAID = "#fbfbf9", "#22262c", "#6b7280", "#1f5fa8"
MISSING = "[...]"


def wrapped(text: str) -> list[str]:
    """Lines of at most COLUMNS characters."""
    return [part for line in text.split("\n") for part in textwrap.wrap(line, COLUMNS) or [""]]


def pages(texts: list[list[tuple[str, str]]]) -> list[Image.Image]:
    """Pages of one size, each made of (heading, text) parts one below the other."""
    all_rows = [_rows(parts) for parts in texts]
    height = 2 * MARGIN + STEP * max(map(len, all_rows), default=0)
    return [_page(rows, height) for rows in all_rows]


def _rows(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for heading, text in parts:
        colour = SAID if heading == "assistant" else INK
        rows += [(heading, QUIET), *((line, colour) for line in wrapped(text)), ("", INK)]
    return rows if len(rows) <= LINES else [(MISSING, QUIET), *rows[-LINES + 1 :]]


def _page(rows: list[tuple[str, str]], height: int) -> Image.Image:
    picture = Image.new("RGB", (WIDTH, height), PAPER)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(SIZE)
    for number, (line, colour) in enumerate(rows):
        draw.text((MARGIN, MARGIN + number * STEP), line, fill=colour, font=font)
    return picture


def captioned(picture: Image.Image, text: str) -> Image.Image:
    """The picture with one line of text below it."""
    font = ImageFont.load_default(13)
    width = max(picture.width, round(font.getlength(text)) + 16)
    whole = Image.new("RGB", (width, picture.height + 24), PAPER)
    whole.paste(picture, ((width - picture.width) // 2, 0))
    ImageDraw.Draw(whole).text((8, picture.height + 4), text, fill=INK, font=font)
    return whole
