"""The pass over the scores of a call by the compiled kernel: on CPUs, if each query sees a stretch of keys.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from headwise.attention.request import Request
from headwise.heads.row_spans import RowSpans, row_spans
from headwise.heads.streaming_rows import LOWEST, Marks, Rows, Swept, least_difference
from headwise.heads.threads import in_threads, shares_of
from headwise.heads.visibility import count_spans

WORTH_COMPILING = 2**22
"""Scores of a call from which on the kernel is compiled; fewer are soon done without."""
_WORTH_A_THREAD = 2**18
_STRIP = 2**17  # scores of a strip, to stay in the second-level cache with their keys
_LEAST_ROWS, _MOST_ROWS = 32, 128  # multiples of 8

_NUMBERS = (
    "heads groups queries keys width q_batch q_head q_row k_batch k_group k_row "
    "corner step near strip placed size"
)
_ROWS = "top total moment distance punctuation special norm special_norm first content apart"
_TENSORS = (
    "q k start stop counted first_key set_apart set_apart_from is_punctuation is_special key_norms sink "
    f"{_ROWS} around received"
)


class _Sweep(ctypes.Structure):
    """What streaming_kernel.c calls a Sweep: the same names in the same order."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _NUMBERS.split()),
        ("scale", ctypes.c_float),
        ("floor", ctypes.c_float),
        ("lowest", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in _TENSORS.split()),
    )


def spans_for_kernel(request: Request) -> RowSpans | None:
    """Return what each query sees, (B, T), if the kernel can do this call, else None."""
    wide = torch.promote_types(request.q.dtype, torch.float32)
    simple = request.bias is None and request.softcap is None and request.pairs > 0
    if not simple or wide != torch.float32 or request.q.device.type != "cpu":
        return None
    return row_spans(request.mask, request.region, request.q.shape[0], request.q.device)


def sweep_compiled(
    library: ctypes.CDLL,
    request: Request,
    spans: RowSpans,
    marks: Marks,
    key_norms: Tensor | None,
    *,
    near: int,
    received: bool,
) -> Swept:
    """Run the pass; see `Sweep` for the arguments."""
    batch, heads, queries, width = request.q.shape
    groups, keys = request.k.shape[1:3]
    q, k = _rows_in_order(request.q), _rows_in_order(request.k)
    text, set_apart = marks.set_apart.nonzero(as_tuple=True)
    found = {name: torch.empty(batch, heads, queries) for name in _ROWS.split()}
    around = torch.empty(0 if marks.corner is None else 2 * near + 1, batch, heads, queries)
    tensors = {
        "q": q,
        "k": k,
        "start": spans.start,
        "stop": spans.stop,
        "counted": marks.counted.contiguous(),
        "first_key": marks.first.contiguous(),
        "set_apart": set_apart,
        "set_apart_from": torch.searchsorted(text, torch.arange(batch + 1)),
        "is_punctuation": marks.punctuation.float(),
        "is_special": marks.special.contiguous(),
        "key_norms": None if key_norms is None else key_norms.float().contiguous(),
        "sink": None if request.sink is None else request.sink.float().contiguous(),
        **found,
        "around": around,
        "received": torch.zeros(batch, heads, keys) if received else None,
    }
    strip = min(max(_STRIP // keys // 8 * 8, _LEAST_ROWS), _MOST_ROWS, -(-queries // 8) * 8)
    sweep = _Sweep(
        *(heads, groups, queries, keys, width, *q.stride()[:3], *k.stride()[:3]),
        *(marks.corner or 0, marks.step, near, strip, marks.corner is not None, batch * heads * queries),
        scale=request.scale,
        floor=least_difference(torch.float32),
        lowest=LOWEST,
        **{name: None if t is None else t.data_ptr() for name, t in tensors.items()},
    )
    panel = library.panel_keys()
    padded = -(-keys // panel) * panel
    row = padded + 16  # rows a power of two apart would share the same few lines of the cache

    def run(share: slice) -> None:
        sizes = padded * width, strip * width, strip * row, 2 * keys
        panels, few, scores, shares = (torch.empty(size) for size in sizes)
        library.sweep(
            ctypes.byref(sweep),
            *map(ctypes.c_int64, (share.start, share.stop)),
            *(ctypes.c_void_p(t.data_ptr()) for t in (panels, few, scores)),
            ctypes.c_int64(row),
            ctypes.c_void_p(shares.data_ptr()),
        )

    # a call of the library leaves the interpreter to the other threads
    in_threads(run, shares_of(batch * heads, request.pairs // _WORTH_A_THREAD))
    rows = Rows(**found, near={offset - near: scores for offset, scores in enumerate(around)})
    classes = torch.stack([marks.special, marks.punctuation], dim=1)
    seen, equal = count_spans(spans, marks.counted, classes, marks.corner, marks.step)
    return Swept(rows, seen, tensors["received"], equal)


def _rows_in_order(t: Tensor) -> Tensor:
    """Return (B, H, T, K) in float32 with the numbers of a row next to each other."""
    t = t.float()
    return t if t.stride(3) == 1 else t.contiguous()
