"""The two other polarities found in the wild, turned into tables of a `Mask`.

Letters: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def from_torch(key_padding_mask: Tensor | None, attn_mask: Tensor | None, n_head: int | None) -> list[Tensor]:
    """Return what ``nn.MultiheadAttention`` hides: bool tables (B, 1, 1, S) and (T, S) or (B, H, T, S)."""
    tables = []
    if key_padding_mask is not None:
        padding = _hides("key_padding_mask", key_padding_mask)
        if padding.ndim not in (1, 2):
            raise ValueError(
                f"key_padding_mask must be (B, S), or (S,) for one sequence, got {tuple(padding.shape)}; "
                "a table of queries and keys is attn_mask"
            )
        tables.append(padding.reshape(-1, 1, 1, padding.shape[-1]))
    if attn_mask is not None:
        table = _hides("attn_mask", attn_mask)
        if table.ndim == 3:
            table = _split_heads(table, n_head)
        elif table.ndim != 2:
            raise ValueError(
                f"attn_mask must be (T, S) or (B·H, T, S), got shape {tuple(table.shape)}; "
                "nn.MultiheadAttention takes no other"
            )
        tables.append(table)
    if len(tables) == 2:
        _check_pair(*tables)
    return tables


def from_zero_hides(t: Tensor) -> Tensor:
    """Return a bool table, True where t is 1; the numbers are looked at, so this waits for the device."""
    if not isinstance(t, Tensor):
        raise TypeError(f"Mask.from_zero_hides needs a tensor of zeros and ones, got {type(t).__name__}")
    if t.dtype == torch.bool:
        return t
    shows = t == 1
    if bool((shows | (t == 0)).all()):
        return shows
    other = t[~(shows | (t == 0))][0].item()
    advice = (
        "it looks like numbers to be added: write Mask.from_torch(attn_mask=t) if they are 0 and -inf, "
        "else pass it as bias"
        if t.dtype.is_floating_point and not math.isnan(other) and other < 0
        else "write t != 0 if every other number shows the key, or Mask.documents(t) if they number documents"
    )
    raise ValueError(
        f"Mask.from_zero_hides needs 1 for keys that are seen and 0 for hidden ones, got {other:g}; {advice}"
    )


def _hides(name: str, t: Tensor) -> Tensor:
    """Return True where nn.MultiheadAttention hides."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(t).__name__}")
    if t.dtype == torch.bool:
        return t
    if not t.dtype.is_floating_point:
        raise TypeError(
            f"{name} must be bool (True hides) or float (-inf hides), got {t.dtype}; "
            "write t.bool() if 1 hides, or Mask.from_zero_hides(t) if 0 hides"
        )
    hides = t == -math.inf
    if bool((hides | (t == 0)).all()):
        return hides
    other = t[~(hides | (t == 0))][0].item()
    if other == 1:
        advice = "nn.MultiheadAttention adds 1 to the scores and hides nothing: write t.bool() if 1 hides"
    elif other < -1e3:
        advice = f"write Mask.hide(t <= {other:g}) if that stands for hidden, or bias=t if it is to be added"
    else:
        advice = "pass such numbers as bias=t"
    raise ValueError(
        f"{name} holds {other:g}, but a float mask may hold only 0 (shown) and -inf (hidden): "
        f"other numbers are added to the scores; {advice}"
    )


def _split_heads(table: Tensor, n_head: int | None) -> Tensor:
    count = table.shape[0]
    if n_head is None:
        raise ValueError(
            f"attn_mask of shape {tuple(table.shape)} holds B·H tables, so say n_head to tell them apart"
        )
    if isinstance(n_head, bool) or not isinstance(n_head, int):
        raise TypeError(f"n_head must be an int, got {type(n_head).__name__}")
    if n_head < 1 or count % n_head:
        raise ValueError(
            f"attn_mask of shape {tuple(table.shape)} holds {count} tables, but B·H must be a multiple of "
            f"n_head={n_head}"
        )
    return table.reshape(count // n_head, n_head, *table.shape[1:])  # (B, H, T, S)


def _check_pair(padding: Tensor, table: Tensor) -> None:
    """Raise ValueError unless both arguments are for the same batch and keys."""
    batch, keys = padding.shape[0], padding.shape[-1]
    batches = table.shape[0] if table.ndim == 4 else None
    if keys == table.shape[-1] and batches in (None, batch):
        return
    swapped = batch == table.shape[-1] and batches in (None, keys)
    of_table = f"S={table.shape[-1]}" + ("" if batches is None else f" and B={batches}")
    raise ValueError(
        f"key_padding_mask is for B={batch} and S={keys}, attn_mask for {of_table}; "
        + (
            "batch and time look swapped: write key_padding_mask.T"
            if swapped
            else "both must be for the same keys"
        )
    )
