"""HTML as text: escaped by default, so that what a model said can never become part of the page."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is markup already; every other text is escaped where it is put into markup."""

    __slots__ = ()


def put(value: Any) -> Html:
    """Markup as it is, None as nothing, anything else as escaped text."""
    return value if isinstance(value, Html) else Html("" if value is None else escape(str(value)))


def join(parts: Iterable[Any], between: str = "") -> Html:
    return Html(between.join(put(part) for part in parts))


def tag(name: str, *content: Any, **attributes: Any) -> Html:
    """An element; `class_` for class, `_` in attribute names becomes `-`, None and False leave an attribute out."""
    written = [
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    return Html(f"<{name}{''.join(written)}>{join(content)}</{name}>")


def single(name: str, **attributes: Any) -> Html:
    """An element without content: img, input, and the shapes of SVG, which must be closed."""
    return Html(tag(name, **attributes).removesuffix(f"></{name}>") + "/>")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], caption: str, words: Sequence[int] = (0,)) -> Html:
    """A table; columns in `words` are text, the others numbers."""

    def cells(kind: str, row: Sequence[Any], **attributes: Any) -> Html:
        return join(
            tag(kind, cell, class_=None if number in words else "number", **attributes)
            for number, cell in enumerate(row)
        )

    body = join(tag("tr", cells("td", row)) for row in rows)
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", cells("th", head, scope="col"))),
            tag("tbody", body),
        ),
        class_="wide",
    )


def section(title: str, *content: Any, about: str = "") -> Html:
    """A part of the page with its heading; nothing when it has no content."""
    inside = join(content)
    if not inside:
        return inside
    key = "".join(c if c.isalnum() else "-" for c in title.lower())
    lead = tag("p", about, class_="about") if about else None
    return tag("section", tag("h2", title, id=key), lead, inside, aria_labelledby=key)


def folded(summary: str, *content: Any) -> Html:
    """Shown when it is opened."""
    return tag("details", tag("summary", summary), *content)
