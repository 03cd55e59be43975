"""Few queries against many keys, as in decoding: the query heads of a group become rows of one head.

Each key and value is then read once, not once per query head. Where there are fewer key/value heads than
threads, the keys are split among the threads as well (Flash-Decoding, Dao et al. 2023).

Letters: B batch, H query heads, G key/value heads, R = H/G, T queries, S keys, K head width of q and k, V
that of v.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attention.request import Request

_MOST_ROWS = 128  # from so many on, the arithmetic and not the reading of keys takes the time
_FEWEST_KEYS = 512  # per thread; fewer are not worth a part of their own


def folds(request: Request) -> bool:
    """Whether the heads of a group can be, and had better be, rows of one head."""
    rows = request.region.rows
    if request.group == 1 or rows * request.group > _MOST_ROWS:
        return False
    if rows != 1 and torch.compiler.is_compiling():
        return False  # one graph is to serve any number of queries
    if request.bias is not None and request.bias.shape[1] != 1:
        return False
    return request.mask is None or not request.mask.varies_by_head()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, dropout: float, scale: float) -> Tensor:
    """Return the output (B, H, T, V) of q (B, H, T, K), k (B, G, S, K), v (B, G, S, V).

    mask is a table or a bias for `F.scaled_dot_product_attention`, (B|1, 1, T|1, S), or None.
    """
    batch, heads, queries, width = q.shape
    groups = k.shape[1]
    rows = q.reshape(batch, groups, heads // groups * queries, width)  # (B, G, R·T, K)
    if mask is not None and mask.shape[2] != 1:
        mask = mask.repeat(1, 1, heads // groups, 1)  # (B|1, 1, R·T, S)
    parts = _parts(rows, k, v) if mask is None and dropout == 0.0 else 1
    if parts > 1:
        out = _split(rows, k, v, parts, scale)
    else:
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return out.reshape(batch, heads, queries, v.shape[3])  # (B, H, T, V)


def _parts(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Return in how many parts to split the keys; 1 where PyTorch's kernel cannot tell what joins them."""
    gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if q.device.type != "cpu" or q.shape[3] != v.shape[3] or gradients or torch.compiler.is_compiling():
        return 1
    heads = max(1, k.shape[0] * k.shape[1])
    return max(1, min(-(-torch.get_num_threads() // heads), k.shape[2] // _FEWEST_KEYS))


def _split(q: Tensor, k: Tensor, v: Tensor, parts: int, scale: float) -> Tensor:
    """Attend to parts of the keys apart and join the results: (B, G, R·T, V)."""
    batch, groups, rows, width = q.shape
    size = k.shape[2] // parts
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    outs, log_sums = [], []
    heads = batch * groups
    for first, many in ((0, parts), (parts * size, 1)):
        last = min(k.shape[2], first + many * size)
        if first == last:
            continue
        # the parts stand where the heads were: (B·G, parts, s, K) and (B·G, parts, s, V), views
        each = (last - first) // many
        keys = k[:, :, first:last].flatten(0, 1).view(heads, many, each, width)
        values = v[:, :, first:last].flatten(0, 1).view(heads, many, each, v.shape[3])
        queries = q.reshape(heads, 1, rows, width).expand(-1, many, -1, -1)
        out, log_sum = flash(queries, keys, values, scale=scale)
        outs.append(out)  # (B·G, parts, R·T, V)
        log_sums.append(log_sum.view(heads, many, rows))
    share = torch.cat(log_sums, dim=1).softmax(dim=1).unsqueeze(-1)  # (B·G, parts, R·T, 1)
    joined = (torch.cat(outs, dim=1) * share).sum(dim=1)
    return joined.to(q.dtype).view(batch, groups, rows, v.shape[3])
