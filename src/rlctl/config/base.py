"""The base of every section: frozen, unknown keys refused, a docstring under each field becomes its description."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """One TOML table."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


MASK = "***"
_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@|\b(password)=[^&\s]*")


def masked(text: str) -> str:
    """`text` with the passwords of the addresses in it replaced."""
    return _PASSWORD.sub(lambda m: f"{m[1]}:{MASK}@" if m[1] else f"{m[2]}={MASK}", text)
