"""What a user says about an uptraining, and what is kept of it in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headwise.files import write_text
from headwise.text.tokenizer import Unknown
from headwise.training.config_file import problems_of

Control = Literal["parent", "scratch"]

SETTINGS = "uptrain.json"

_MAY_CHANGE = frozenset({"parent", "device", "controls"})

HELD_OUT = 20_000


class UptrainConfig(BaseModel):
    """What a user says about an uptraining; None is what fits.

    Raises:
        pydantic.ValidationError: (a ValueError) listing every problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parent: str | None = None
    """Folder or name of the model that the child was made of."""
    share: float | None = Field(None, gt=0, le=1)
    """Of the tokens that the parent was trained on."""
    tokens: int | None = Field(None, ge=1)
    kl: float = Field(1.0, ge=0)
    data: str | None = None
    unknown: Unknown = "error"
    held_out: int = Field(HELD_OUT, ge=2)
    """Most tokens of `data`, at its end, to measure on; never more than a tenth."""
    length: int | None = Field(None, ge=1)
    evaluations: int = Field(10, ge=1)
    controls: frozenset[Control] = frozenset()
    """`parent`: the parent trained on by cross-entropy with the same recipe; `scratch`: the child's shape
    from random weights by cross-entropy at the parent's own rate. Both on as many tokens."""
    optimizer: Literal["muon", "adamw"] | None = None
    learning_rate: float | None = Field(None, gt=0)
    matrix_learning_rate: float | None = Field(None, gt=0)
    warmup_steps: int | None = Field(None, ge=0)
    batch_size: int | None = Field(None, ge=1)
    grad_accumulation: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    device: str = "auto"

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.share is not None and self.tokens is not None:
            raise ValueError(f"give either share or tokens, got {self.share} and {self.tokens}")
        for name, usual in (("held_out", HELD_OUT), ("unknown", "error")):
            if self.data is None and getattr(self, name) != usual:
                raise ValueError(
                    f"{name}={getattr(self, name)} is about a text that is given as data; without one the "
                    "parent's own tokens are used, so leave it out or give data"
                )
        return self

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Make one of what is given; raises ValueError in one sentence for each problem."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError("; ".join(problems_of(error))) from None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what the uptraining in a folder was begun with.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged.
        """
        path = folder / SETTINGS
        if not path.is_file():
            raise FileNotFoundError(f"there is no uptraining to resume in {folder} (it has no {SETTINGS})")
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Keep this in a folder."""
        write_text(folder / SETTINGS, self.model_dump_json(indent=2) + "\n")

    def resumed_with(self, given: UptrainConfig) -> UptrainConfig:
        """Return these settings with what may change taken over from `given`; controls are added.

        Raises:
            ValueError: something else is given that differs; names all of it.
        """
        changed = [
            f"{name} from {getattr(self, name)} to {getattr(given, name)}"
            for name in sorted(given.model_fields_set - _MAY_CHANGE)
            if getattr(given, name) != getattr(self, name)
        ]
        if changed:
            raise ValueError(
                f"a resumed uptraining cannot change {', '.join(changed)}; leave it as it was, or begin a "
                "new one in another folder"
            )
        free = {name: getattr(given, name) for name in given.model_fields_set & _MAY_CHANGE}
        return self.model_copy(update=free | {"controls": self.controls | given.controls})
