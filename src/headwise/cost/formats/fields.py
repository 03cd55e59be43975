"""The fields of a configuration, read by type: what is missing or odd is named, never made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headwise.cost.architecture import check_groups, head_width
from headwise.cost.numbers import MOST_LAYERS, whole

Kind = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Fields:
    """The fields of one model, or of one of its layers where layers differ.

    Attributes:
        values: as the JSON file has them.
        model_type: what the file calls the model.
    """

    values: Mapping[str, Any]
    model_type: str

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """The whole number of this name; `default` where the format has one and the file leaves it out.

        Raises ValueError if it is missing without a default, not whole, or below `least`.
        """
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise ValueError(
                    f"the {self.model_type} config has no {name}, which its costs depend on; add it"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(
                f"{name} in the {self.model_type} config must be a whole number of at least {least}, "
                f"got {value!r}"
            )
        return value

    def layers(self, name: str) -> int:
        """The number of layers, by this name."""
        return whole(f"{name} in the {self.model_type} config", self.count(name), most=MOST_LAYERS)

    def either(self, *names: str) -> int:
        """The whole number under whichever of these names the file has."""
        return self.count(next((name for name in names if self.values.get(name) is not None), names[0]))

    def maybe(self, name: str) -> int | None:
        """The whole number of this name, or None where the file says null or nothing."""
        return None if self.values.get(name) is None else self.count(name)

    def stated(self, name: str) -> int | None:
        """The whole number or null of this name, which the file must state."""
        if name not in self.values:
            raise ValueError(
                f"the {self.model_type} config has no {name}, which its costs depend on; add it (null: none)"
            )
        return self.maybe(name)

    def flag(self, name: str, default: bool) -> bool:
        """The true or false of this name; raises ValueError for anything else."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{name} in the {self.model_type} config must be true or false, got {value!r}")
        return value

    def counts(self, name: str) -> list[int]:
        """The list of whole numbers of this name; empty where there is none."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
            raise ValueError(f"{name} in the {self.model_type} config must list whole numbers, got {value!r}")
        return value

    def refuse(self, name: str, wanted: Any, why: str) -> None:
        """Raise ValueError if the file gives `name` another value than `wanted`."""
        value = self.values.get(name, wanted)
        if value is not None and value != wanted:
            raise ValueError(f"{self.model_type} with {name}={value!r} cannot be read: {why}")

    def layer(self, index: int, n_layer: int) -> Fields:
        """The fields of one layer: its part of lists, and its `per_layer_config` laid over the rest."""
        values = dict(self.values)
        for name in _LISTED:
            value = values.get(name)
            if isinstance(value, list):
                if len(value) != n_layer:
                    raise ValueError(
                        f"{name} in the {self.model_type} config lists {len(value)} layers, "
                        f"but there are {n_layer}"
                    )
                values[name] = value[index]
        overrides = self.values.get("per_layer_config") or {}
        if not isinstance(overrides, Mapping) or not all(isinstance(o, Mapping) for o in overrides.values()):
            raise ValueError(
                f"per_layer_config in the {self.model_type} config must map layers to fields, "
                f"got {overrides!r}"
            )
        outside = [key for key in overrides if not (str(key).isdecimal() and int(key) < n_layer)]
        if outside:
            raise ValueError(
                f"per_layer_config in the {self.model_type} config names layer {outside[0]!r}, "
                f"but layers are 0 … {n_layer - 1}"
            )
        return Fields(values | dict(overrides.get(str(index), {})), self.model_type)

    def heads(self, head_dim: int | None = None) -> tuple[int, int, int]:
        """H, G and K of a Llama-like layer: an explicit `head_dim` counts, not hidden_size / heads.

        Args:
            head_dim: what the format takes where the file gives none; None: hidden_size / heads.
        """
        n_head = self.count("num_attention_heads")
        n_kv_head = self.count("num_key_value_heads", n_head)
        width = head_width(self.count("hidden_size"), n_head, self.maybe("head_dim") or head_dim)
        check_groups(n_head, n_kv_head)
        return n_head, n_kv_head, width

    def windows(self, n_layer: int, default: Sequence[Kind]) -> list[int | None]:
        """Each layer's window by `layer_types`, or by `default` where the file has none."""
        kinds = self.values.get("layer_types") or default
        if not isinstance(kinds, Sequence) or len(kinds) != n_layer:
            raise ValueError(
                f"layer_types in the {self.model_type} config must name {n_layer} layers, got {kinds!r}"
            )
        unknown = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
        if unknown:
            raise ValueError(
                f"{self.model_type} with layers of type {unknown[0]!r} cannot be read: unknown costs"
            )
        if "sliding_attention" not in kinds:
            return [None] * n_layer
        window = self.count("sliding_window")
        return [window if kind == "sliding_attention" else None for kind in kinds]


_LISTED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
