"""What a model hands to its attention, told in one language: a `Mask`, a bias, a scale.

Letters: B batch, H query heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.attention import Mask
from headwise.hub.calls import AttentionCall
from headwise.hub.layers import AttentionLayer
from headwise.hub.listening import Heard

UNDERSTOOD = "eager", "sdpa"
"""The attention functions of transformers whose arguments are understood."""

_REMEMBERED = 4
_ROWS = 512


class Translator:
    """Turns what was heard into an `AttentionCall`.

    Layers of one run are usually given one and the same mask tensor, so the last few are remembered.
    """

    def __init__(self) -> None:
        self._masks: dict[int, tuple[Tensor, int, Mask | None, Tensor | None]] = {}

    def call(self, layer: AttentionLayer, heard: Heard) -> AttentionCall:
        """Return what an observer is shown; raises ValueError for an attention function not understood."""
        options = heard.options
        if heard.implementation is None:
            return AttentionCall(
                layer,
                heard.q,
                heard.k,
                heard.v,
                heard.out,
                options["mask"],
                heard.q.shape[3] ** -0.5,
                options["bias"],
                options["softcap"],
                options["sink"],
                options["cross"],
            )
        check_understood(heard.implementation)
        k, v = heard.k, heard.v
        table = options["attention_mask"]
        position_bias = options.get("position_bias")
        queries = heard.q.shape[2]
        mask: Mask | None = None
        rest: Tensor | None = None
        if table is not None:
            mask, rest = self._mask(table[..., : k.shape[2]])
        elif heard.implementation == "sdpa" and queries > 1 and _is_causal(heard):
            mask = Mask.causal()
            if k.shape[2] > queries:  # the empty end of a static cache, which sdpa cuts off
                k, v = k[:, :, :queries], v[:, :, :queries]
                position_bias = None if position_bias is None else position_bias[..., :queries]
        if position_bias is not None and (position_bias.requires_grad or bool(position_bias.any())):
            rest = position_bias if rest is None else position_bias + rest
        scale = options.get("scaling")
        return AttentionCall(
            layer,
            heard.q,
            k,
            v,
            heard.out,
            mask,
            heard.q.shape[3] ** -0.5 if scale is None else float(scale),
            rest,
            options.get("softcap"),
            options.get("s_aux"),
            layer.cross,
        )

    def _mask(self, table: Tensor) -> tuple[Mask | None, Tensor | None]:
        # a slice is a new tensor each time, so memory, place and version say whether it is the same table
        key = hash((table.data_ptr(), tuple(table.shape), table.stride(), table.dtype))
        version = 0 if table.is_inference() else table._version
        found = self._masks.get(key)
        if found is not None and found[1] == version:
            return found[2], found[3]
        mask, bias = mask_and_bias(table)
        if not table.requires_grad:
            while len(self._masks) >= _REMEMBERED:
                del self._masks[next(iter(self._masks))]
            self._masks[key] = table, version, mask, bias  # held, so that its memory is not reused
        return mask, bias


def check_understood(implementation: str | None) -> None:
    """Raise ValueError unless the arguments of an attention function of transformers are understood."""
    if implementation is not None and implementation not in UNDERSTOOD:
        raise ValueError(
            f"the model attends with {implementation!r}, whose masks cannot be read; "
            'call model.set_attn_implementation("sdpa") first'
        )


def _is_causal(heard: Heard) -> bool:
    """Whether sdpa hides what comes later when there is no mask, by the rule of transformers."""
    given = heard.options.get("is_causal")
    return bool(getattr(heard.module, "is_causal", True) if given is None else given)


def mask_and_bias(table: Tensor) -> tuple[Mask | None, Tensor | None]:
    """Split a table (B|1, H|1, T|1, S) into what it hides and what it adds to the scores.

    table: bool, True may attend; or float, added to the scores, the lowest number of its dtype (or -inf)
        where hidden.
    """
    if table.dtype == torch.bool:
        return mask_of(table), None
    hidden = table.detach() <= torch.finfo(table.dtype).min / 2
    bias = table.masked_fill(hidden, 0.0)
    return mask_of(~hidden), bias if table.requires_grad or bool(bias.any()) else None


def mask_of(table: Tensor) -> Mask | None:
    """Return the mask that allows where a table (B|1, H|1, T|1, S) is True, as a rule if it is one.

    Causal masks, windows and padding are recognised, so that whoever works with the mask need not look at
    each pair. None if nothing is hidden.
    """
    if table.stride(2) == 0:  # the same for each query
        table = table[:, :, :1]
    if bool(table.all()):
        return None
    if table.shape[1] != 1 or table.shape[2] == 1:
        return Mask.keep(table)
    queries, keys = table.shape[2:]
    last = table[:, :, -1:]
    if torch.equal(table[:, :, :1], last) and _all_rows(table, lambda *_: last):
        return Mask.keep(last)
    # a key that is not hidden from everyone is real; then the last query tells how far back it sees
    real = table.any(dim=2, keepdim=True)  # (B, 1, 1, S)
    seen = int(table[:, 0, -1].sum(dim=-1).max())
    padding = None if bool(real.all()) else Mask.keep(real)
    rules = [Mask.causal()]
    if 0 < seen < keys:
        rules.append(Mask.window(seen))
    for rule in rules:

        def shown(start: int, rows: int, rule: Mask = rule) -> Tensor:
            offset = keys - queries + start
            return rule.to_tensor(rows, keys, offset=offset, device=table.device) & real

        if _all_rows(table, shown):
            return rule if padding is None else rule & padding
    return Mask.keep(table)


def _all_rows(table: Tensor, shown: Callable[[int, int], Tensor]) -> bool:
    """Whether a table (B, 1, T, S) is what `shown` gives for some queries at a time: the first, how many."""
    queries = table.shape[2]
    for start in range(0, queries, _ROWS):
        rows = table[:, :, start : start + _ROWS]
        if not bool((rows == shown(start, rows.shape[2])).all()):
            return False
    return True
