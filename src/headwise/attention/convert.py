"""Multi-head attention from and to other forms of it: PyTorch's module, and the textbook's separate heads."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from headwise.attention.multi_head import MultiHeadAttention
from headwise.attention.textbook import Head, HeadList

PROJECTIONS = "q_proj", "k_proj", "v_proj"


def from_heads(heads: HeadList) -> MultiHeadAttention:
    """Return the module that computes what the separate heads do, given ``mask=Mask.causal()``.

    The heads' matrices become the rows of one; weights are copied, dropout and train/eval kept.
    """
    each = [cast(Head, head) for head in heads.heads]
    first = each[0]
    made = MultiHeadAttention(
        first.d_model,
        len(each),
        d_head=first.d_head,
        bias={"o"},
        dropout=first.dropout,
        output_dropout=heads.dropout,
    )
    made.to(device=heads.proj.weight.device, dtype=heads.proj.weight.dtype)
    with torch.no_grad():
        made.q_proj.weight.copy_(torch.cat([head.query.weight for head in each]))  # (H·K, D)
        made.k_proj.weight.copy_(torch.cat([head.key.weight for head in each]))
        made.v_proj.weight.copy_(torch.cat([head.value.weight for head in each]))
    made.o_proj.load_state_dict(heads.proj.state_dict())
    return made.train(heads.training)


def to_heads(mha: MultiHeadAttention, block_size: int) -> HeadList:
    """Return the separate heads that compute what the module does, given ``mask=Mask.causal()``.

    Weights are copied, train/eval kept; key/value heads that several query heads share are repeated, and a
    missing output bias becomes zeros. Raises ValueError, with every reason, for what separate heads have no
    place for.
    """
    reasons = _beyond_plain(mha)
    if mha.d_context != mha.d_model:
        reasons.append(f"d_context={mha.d_context} apart from d_model={mha.d_model}")
    reasons += [f"a bias in {name}" for name in PROJECTIONS if _linear(mha, name).bias is not None]
    if mha.output_dropout != mha.dropout:
        reasons.append(f"output_dropout={mha.output_dropout} apart from dropout={mha.dropout}")
    _refuse(reasons, "separate heads have")
    made = HeadList(mha.d_model, mha.n_head, block_size, mha.dropout)
    made.to(device=mha.q_proj.weight.device, dtype=mha.q_proj.weight.dtype)
    with torch.no_grad():
        for part, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            rows = _per_query_head(mha, name, _linear(mha, name).weight).chunk(mha.n_head)
            for head, own in zip(made.heads, rows, strict=True):
                _linear(head, part).weight.copy_(own)
        _copy_output(mha, made.proj)
    return made.train(mha.training)


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Return the module that computes what PyTorch's does.

    Weights are copied, dropout (which there falls on the weights only) and train/eval kept. Inputs are always
    batch first here; where the module was made with batch_first=False, swap the first two axes. For its
    masks, in which True hides, there is `Mask.from_torch`.

    Raises TypeError for another kind of module, ValueError, with every reason, for add_bias_kv, add_zero_attn
    and keys and values of different widths, which have no place here.
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"from_torch needs a torch.nn.MultiheadAttention, got {type(module).__name__}")
    reasons = []
    if module.bias_k is not None or module.bias_v is not None:
        reasons.append("add_bias_kv=True")
    if module.add_zero_attn:
        reasons.append("add_zero_attn=True")
    if module.kdim != module.vdim:
        reasons.append(f"kdim={module.kdim} apart from vdim={module.vdim}, as both are made from one context")
    _refuse(reasons, "headwise's module has")
    made = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        d_context=module.kdim,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
        output_dropout=0.0,
    )
    made.to(device=module.out_proj.weight.device, dtype=module.out_proj.weight.dtype)
    with torch.no_grad():
        for name, weight in zip(PROJECTIONS, _torch_weights(module), strict=True):
            _linear(made, name).weight.copy_(weight)
        if module.in_proj_bias is not None:
            for name, bias in zip(PROJECTIONS, module.in_proj_bias.chunk(3), strict=True):
                _linear(made, name).bias.copy_(bias)
    made.o_proj.load_state_dict(module.out_proj.state_dict())
    return made.train(module.training)


def to_torch(mha: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return PyTorch's module with these weights, batch_first=True.

    Weights are copied, dropout and train/eval kept. Key/value heads that several query heads share are
    repeated; if only some projections have a bias, the others get zeros. Give a context as key and as value.
    Raises ValueError, with every reason, for what PyTorch's module has no place for.
    """
    reasons = _beyond_plain(mha)
    if mha.output_dropout > 0.0:
        reasons.append(f"output_dropout={mha.output_dropout} (set it to 0.0 and drop out afterwards)")
    _refuse(reasons, "torch.nn.MultiheadAttention has")
    biased = any(_linear(mha, name).bias is not None for name in (*PROJECTIONS, "o_proj"))
    context = None if mha.d_context == mha.d_model else mha.d_context
    made = nn.MultiheadAttention(
        mha.d_model,
        mha.n_head,
        dropout=mha.dropout,
        bias=biased,
        kdim=context,
        vdim=context,
        batch_first=True,
        device=mha.q_proj.weight.device,
        dtype=mha.q_proj.weight.dtype,
    )
    with torch.no_grad():
        for name, weight in zip(PROJECTIONS, _torch_weights(made), strict=True):
            weight.copy_(_per_query_head(mha, name, _linear(mha, name).weight))
        if biased:
            for name, bias in zip(PROJECTIONS, made.in_proj_bias.chunk(3), strict=True):
                ours = _linear(mha, name).bias
                bias.copy_(torch.zeros_like(bias) if ours is None else _per_query_head(mha, name, ours))
        _copy_output(mha, made.out_proj)
    return made.train(mha.training)


def _beyond_plain(mha: MultiHeadAttention) -> list[str]:
    """Return what the module does beyond plain attention with heads that divide d_model."""
    reasons = []
    if mha.rotary is not None:
        reasons.append("rotary positions")
    if mha.q_norm is not None:
        reasons.append("qk_norm=True")
    if mha.softcap is not None:
        reasons.append(f"softcap={mha.softcap}")
    if mha.sink is not None:
        reasons.append("sink=True")
    if mha.n_head * mha.d_head != mha.d_model:
        reasons.append(f"n_head · d_head = {mha.n_head * mha.d_head} apart from d_model={mha.d_model}")
    if mha.d_value != mha.d_head:
        reasons.append(f"d_value={mha.d_value} apart from d_head={mha.d_head}")
    if mha.d_out != mha.d_model:
        reasons.append(f"d_out={mha.d_out} apart from d_model={mha.d_model}")
    if not isinstance(mha.o_proj, nn.Linear):
        reasons.append("output_projection=False")
    return reasons


def _refuse(reasons: list[str], place: str) -> None:
    if reasons:
        raise ValueError(f"cannot convert: {place} no place for {'; '.join(reasons)}")


def _linear(module: nn.Module, name: str) -> nn.Linear:
    return cast(nn.Linear, module.get_submodule(name))


def _per_query_head(mha: MultiHeadAttention, name: str, rows: Tensor) -> Tensor:
    """Return the weight (H·K, …) or bias (H·K,) in which every query head has its own rows."""
    if name == "q_proj" or mha.n_kv_head == mha.n_head:
        return rows
    shared = rows.reshape(mha.n_kv_head, -1, *rows.shape[1:])  # (G, K, …)
    return shared.repeat_interleave(mha.n_head // mha.n_kv_head, dim=0).flatten(0, 1)


def _copy_output(mha: MultiHeadAttention, to: nn.Linear) -> None:
    o_proj = cast(nn.Linear, mha.o_proj)
    to.weight.copy_(o_proj.weight)
    if to.bias is not None:
        to.bias.copy_(torch.zeros_like(to.bias) if o_proj.bias is None else o_proj.bias)


def _torch_weights(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of queries, keys and values, views of one matrix if the widths are equal."""
    if module.in_proj_weight is not None:
        q, k, v = module.in_proj_weight.chunk(3)
        return q, k, v
    return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
