"""Other people's attention on the same random weights: equal outputs, equal gradients.

x-transformers and transformers are needed for these tests only; nothing is fetched.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs to mend, while they are imported
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
    from x_transformers.x_transformers import Attention, RotaryEmbedding

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary

T = 7
LENGTHS = torch.tensor([7, 4])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(8)


def compare(
    ours: Callable[[Tensor], Tensor],
    theirs: Callable[[Tensor], Tensor],
    x: Tensor,
    pairs: list[tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]],
    rows: Tensor | None = None,
) -> None:
    """Outputs, the gradients of x and of the weights; rows (B, T) says which queries are compared."""
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, wanted = ours(x1), theirs(x2)
    into = torch.randn_like(out)
    if rows is not None:
        into = into * rows[..., None]
        out, wanted = out * rows[..., None], wanted * rows[..., None]
    torch.testing.assert_close(out, wanted)
    out.backward(into)
    wanted.backward(into)
    torch.testing.assert_close(x1.grad, x2.grad)
    for mine, other, reorder in pairs:
        torch.testing.assert_close(mine.grad, reorder(other.grad))  # type: ignore[arg-type]


def same(t: Tensor) -> Tensor:
    return t


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_pytorch(cross: bool, biased: bool) -> None:
    widths = {"kdim": 10, "vdim": 10} if cross else {}
    theirs = nn.MultiheadAttention(12, 3, bias=biased, batch_first=True, **widths).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = MultiHeadAttention.from_torch(theirs)
    context = torch.randn(2, 9, 10, dtype=torch.float64) if cross else None
    S = 9 if cross else T
    hidden, padding = torch.rand(T, S) < 0.4, torch.arange(S) >= torch.tensor([S, 5])[:, None]
    hidden[:, 0] = False
    mask = Mask.hide(hidden) & Mask.hide(padding[:, None, None, :])
    masks = {"attn_mask": hidden, "key_padding_mask": padding, "average_attn_weights": False}

    def other(x: Tensor) -> Tensor:
        source = x if context is None else context
        out: Tensor = theirs(x, source, source, **masks)[0]
        return out

    x = torch.randn(2, T, 12, dtype=torch.float64)
    compare(
        lambda x: ours(x, context, mask=mask), other, x, [(ours.o_proj.weight, theirs.out_proj.weight, same)]
    )
    source = x if context is None else context
    _, weights = ours(x, context, mask=mask, return_weights=True)
    torch.testing.assert_close(weights, theirs(x, source, source, **masks)[1])


def regrouped(n_head: int, n_kv_head: int, axis: int) -> Callable[[Tensor], Tensor]:
    """x-transformers lets query head h read key/value head h % G; here it is h // (H / G)."""
    order = torch.arange(n_head).view(-1, n_kv_head).T.flatten()

    def reorder(t: Tensor) -> Tensor:
        return t.unflatten(axis, (n_head, -1)).index_select(axis, order).flatten(axis, axis + 1)

    return reorder


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("n_kv_head", [6, 3, 2, 1])
@pytest.mark.parametrize("masks", ["none", "causal", "causal, padding", "window"])
def test_x_transformers(masks: str, n_kv_head: int, rotary: bool, flash: bool) -> None:
    causal = masks != "none"
    theirs = Attention(
        24,
        dim_head=8,
        heads=6,
        kv_heads=n_kv_head,
        causal=causal,
        flash=flash,
        max_attend_past=2 if masks == "window" else None,  # they count the keys before the query's own
    )
    ours = MultiHeadAttention(
        24, 6, n_kv_head=n_kv_head, d_head=8, rotary=Rotary(8, interleaved=True) if rotary else None
    )
    rows, columns = regrouped(6, n_kv_head, 0), regrouped(6, n_kv_head, 1)
    pairs = [
        (ours.q_proj.weight, theirs.to_q.weight, rows),
        (ours.k_proj.weight, theirs.to_k.weight, same),
        (ours.v_proj.weight, theirs.to_v.weight, same),
        (ours.o_proj.weight, theirs.to_out.weight, columns),
    ]
    with torch.no_grad():
        for mine, other, reorder in pairs:
            mine.copy_(reorder(other))
    padding = torch.arange(T) < LENGTHS[:, None] if "padding" in masks else None
    mask = {"none": None, "window": Mask.window(3)}.get(masks, Mask.causal())
    if padding is not None and mask is not None:
        mask = mask & Mask.lengths(LENGTHS)
    turns = RotaryEmbedding(8).forward_from_seq_len(T) if rotary else None
    compare(
        lambda x: ours(x, mask=mask),
        lambda x: theirs(x, mask=padding, rotary_pos_emb=turns),
        torch.randn(2, T, 24),
        pairs,
        rows=padding,  # theirs blanks the queries of the padding as well
    )


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def causal_padding(kind: str, S: int) -> tuple[Mask, Tensor, Tensor]:
    """The mask, theirs (0 and -inf, (B, 1, T, S)), and which queries are real."""
    real = torch.ones(2, S, dtype=torch.bool)
    if kind == "right padding":
        real = torch.arange(S) < LENGTHS[:, None]
    if kind == "left padding":
        real = torch.arange(S) >= S - LENGTHS[:, None]
    mask = Mask.causal() & Mask.keep(real[:, None, None, :])
    table = mask.to_tensor(S, S).expand(2, 1, S, S)
    return mask, torch.zeros(table.shape).masked_fill(~table, torch.finfo(torch.float32).min), real


@pytest.mark.parametrize("kind", ["causal", "right padding", "left padding"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("n_kv_head", [6, 3, 2, 1])
def test_llama(n_kv_head: int, implementation: str, kind: str) -> None:
    config = LlamaConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=n_kv_head,
        head_dim=8,
        attn_implementation=implementation,
    )
    theirs, turns = LlamaAttention(config, layer_idx=0), LlamaRotaryEmbedding(config)
    rotary = Rotary.from_parameters(8, config.rope_parameters)
    ours = MultiHeadAttention(24, 6, n_kv_head=n_kv_head, d_head=8, rotary=rotary)
    ours.load_state_dict(theirs.state_dict())
    mask, table, real = causal_padding(kind, T)
    x = torch.randn(2, T, 24)
    cos_sin = turns(x, torch.arange(T)[None])
    compare(
        lambda x: ours(x, mask=mask),
        lambda x: theirs(x, position_embeddings=cos_sin, attention_mask=table)[0],
        x,
        [(ours.get_submodule(p).weight, theirs.get_submodule(p).weight, same) for p in PROJECTIONS],
        rows=real,  # theirs gives queries that see nothing the mean of all values
    )


def test_llama_one_step_at_a_time() -> None:
    config = LlamaConfig(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=8)
    theirs, turns = LlamaAttention(config, layer_idx=0), LlamaRotaryEmbedding(config)
    config._attn_implementation = "eager"
    ours = MultiHeadAttention(24, 6, n_kv_head=2, d_head=8, rotary=Rotary(8))
    ours.load_state_dict(theirs.state_dict())
    x, (_, table, _) = torch.randn(2, T, 24), causal_padding("causal", T)
    cache = LayerCache(2, 2, T, 8)
    with torch.no_grad():
        wanted = theirs(x, position_embeddings=turns(x, torch.arange(T)[None]), attention_mask=table)[0]
        steps = [ours(x[:, i : i + 1], mask=Mask.causal(), cache=cache) for i in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), wanted)


def test_qwen3_norms_queries_and_keys_before_it_turns_them() -> None:
    config = Qwen3Config(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="eager",
    )
    theirs, turns = Qwen3Attention(config, layer_idx=0), LlamaRotaryEmbedding(config)
    for norm in (theirs.q_norm, theirs.k_norm):
        nn.init.normal_(norm.weight, mean=1.0, std=0.5)
    rotary = Rotary.from_parameters(8, config.rope_parameters)
    ours = MultiHeadAttention(24, 6, n_kv_head=2, d_head=8, rotary=rotary, qk_norm=True)
    ours.load_state_dict(theirs.state_dict())
    x, (mask, table, _) = torch.randn(2, T, 24), causal_padding("causal", T)
    cos_sin = turns(x, torch.arange(T)[None])
    names = [*(f"{p}.weight" for p in PROJECTIONS), "q_norm.weight", "k_norm.weight"]
    compare(
        lambda x: ours(x, mask=mask),
        lambda x: theirs(x, position_embeddings=cos_sin, attention_mask=table)[0],
        x,
        [(ours.get_parameter(name), theirs.get_parameter(name), same) for name in names],
    )


SCALINGS: dict[str, dict[str, object]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, all keys": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "truncate": False,
    },
    "yarn, attention factor": {
        "factor": 16.0,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.5,
    },
}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scaling_reads_the_parameters_of_transformers(name: str, theta: float) -> None:
    parameters = {"rope_type": name.split(",")[0], "rope_theta": theta} | SCALINGS[name]
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=parameters)
    theirs, ours = LlamaRotaryEmbedding(config), Rotary.from_parameters(128, parameters)
    positions = torch.tensor([0, 1, 7, 4096, 100_000])
    wanted_cos, wanted_sin = theirs(torch.zeros(1), positions[None])
    cos, sin = ours.tables(positions)
    close = {"atol": 0.02, "rtol": 0.0}  # at position 100,000 float32 angles differ by a hundredth
    torch.testing.assert_close(torch.cat((cos, cos), dim=-1), wanted_cos[0], **close)
    torch.testing.assert_close(torch.cat((sin, sin), dim=-1), wanted_sin[0], **close)
    near = positions <= 7
    torch.testing.assert_close(torch.cat((cos, cos), dim=-1)[near], wanted_cos[0][near])
