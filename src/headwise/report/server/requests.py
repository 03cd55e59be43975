"""What a request may ask, as the page sends it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

HowSilent = Literal["zero", "mean"]
Number = Annotated[int, Field(ge=0, lt=100_000)]


class TextRequest(BaseModel):
    """A text for a model, some of whose heads may be switched off."""

    model_config = ConfigDict(extra="forbid")

    model: str
    text: str
    off: list[tuple[Number, Number]] = Field(default=[], max_length=10_000)
    """(layer, head) of each."""
    how: HowSilent = "zero"
    """What takes the place of their outputs: 0, or their mean over the tokens of the text."""

    @field_validator("text")
    @classmethod
    def _whole_characters(cls, text: str) -> str:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("it holds half a character (a surrogate without its other half)")
        return text


class ReadRequest(TextRequest):
    """What a model expects at one token."""

    at: Number | None = None
    """The token after which, or in whose place; None for the last."""


class WriteRequest(TextRequest):
    """How a model goes on with a text."""

    tokens: Annotated[int, Field(ge=1)] | None = None
    """None for 60, or as many as may be."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 for all."""
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
