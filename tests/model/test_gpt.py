"""GPT against a reference written out here, and its rules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.model import GPT, PRESETS, GPTConfig

Make = Callable[..., GPT]


def reference_logits(model: GPT, ids: Tensor) -> Tensor:
    """The model's formula in plain loops over heads, from its weights alone."""
    config, weights = model.config, {k: v.double() for k, v in model.state_dict().items()}
    length = ids.shape[0]

    def linear(name: str, x: Tensor) -> Tensor:
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def norm(name: str, x: Tensor) -> Tensor:
        if config.norm == "none":
            return x
        if config.norm == "rms":
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def turn(x: Tensor) -> Tensor:
        """Rotary positions: plane p holds coordinates p and p + d/2 and turns by t·10000^(-2p/d)."""
        if config.position != "rotary":
            return x
        width, out = x.shape[-1], x.clone()
        for t in range(length):
            for p in range(width // 2):
                angle = t * 10000 ** (-2 * p / width)
                a, b = x[t, p].clone(), x[t, p + width // 2].clone()
                out[t, p] = a * math.cos(angle) - b * math.sin(angle)
                out[t, p + width // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(name: str, x: Tensor) -> Tensor:
        width, share = config.head_width, config.n_head // config.kv_heads
        q, k, v = (linear(f"{name}.{part}_proj", x) for part in "qkv")
        heads = []
        for h in range(config.n_head):
            mine, shared = slice(h * width, (h + 1) * width), h // share
            theirs = slice(shared * width, (shared + 1) * width)
            scores = turn(q[:, mine]) @ turn(k[:, theirs]).T / math.sqrt(width)
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, theirs])
        joined = torch.cat(heads, -1)
        return linear(f"{name}.o_proj", joined) if config.output_projection == "learned" else joined

    def feed_forward(name: str, x: Tensor) -> Tensor:
        up = linear(f"{name}.up_proj", x)
        if config.mlp == "swiglu":
            gate = linear(f"{name}.gate_proj", x)
            return linear(f"{name}.down_proj", gate * torch.sigmoid(gate) * up)
        cubic = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
        return linear(f"{name}.down_proj", 0.5 * up * (1 + torch.tanh(cubic)))

    x = weights["token_embedding.weight"][ids]
    if config.position == "learned":
        x = x + weights["position_embedding.weight"][:length]
    for layer in range(config.n_layer):
        name = f"blocks.{layer}"
        seen = attention(f"{name}.attention", norm(f"{name}.attention_norm", x))
        x = x + seen if config.residual else seen
        if config.mlp != "none":
            changed = feed_forward(f"{name}.mlp", norm(f"{name}.mlp_norm", x))
            x = x + changed if config.residual else changed
    return norm("final_norm", x) @ weights["head.weight"].T


VARIANTS = [
    *[(preset, {}) for preset in PRESETS],
    ("gpt", {"n_head": 8, "n_kv_head": 2, "d_model": 32}),
    ("gpt", {"n_kv_head": 1}),
    ("gpt", {"d_head": 6}),
    ("gpt", {"output_projection": "identity"}),
    ("gpt2", {"n_kv_head": 2, "tied_embeddings": False}),
    ("gpt2", {"mlp": "swiglu", "norm": "rms", "d_ff": 20}),
    ("block", {"residual": False, "position": "rotary"}),
]


@pytest.mark.parametrize(("preset", "changes"), VARIANTS, ids=str)
def test_logits_equal_the_plain_reference(make_gpt: Make, preset: str, changes: dict) -> None:
    model = make_gpt(preset, **changes)
    ids = torch.randint(0, model.config.vocab_size, (1, 8), generator=torch.Generator().manual_seed(1))
    expected = reference_logits(model, ids[0])
    assert expected.std() > 0.05  # weights matter
    torch.testing.assert_close(model.double()(ids)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_explicit_and_fused_attention_agree(make_gpt: Make, preset: str) -> None:
    model = make_gpt(preset)
    ids = torch.randint(0, model.config.vocab_size, (3, 7))
    logits = {}
    for backend in ("reference", "sdpa"):
        for block in model.blocks:
            block.attention.backend = backend
        logits[backend] = model(ids)
    torch.testing.assert_close(logits["reference"], logits["sdpa"], rtol=1e-5, atol=1e-5)


def test_returned_weights_do_not_change_the_logits(make_gpt: Make) -> None:
    model = make_gpt(n_kv_head=2)
    ids = torch.randint(0, model.config.vocab_size, (2, 6))
    logits, weights = model(ids, return_weights=True)
    torch.testing.assert_close(logits, model(ids), rtol=1e-5, atol=1e-5)
    assert [w.shape for w in weights] == [(2, 4, 6, 6)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(2, 4, 6))
        assert (w.triu(1) == 0).all()


def test_a_later_token_never_changes_an_earlier_score(make_gpt: Make) -> None:
    model = make_gpt()
    ids = torch.randint(0, model.config.vocab_size, (1, 8))
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % model.config.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_each_rung_adds_what_it_says() -> None:
    parts = {
        name: GPT(GPTConfig(vocab_size=50, **s.model_dump())).parameters_by_part()
        for name, s in PRESETS.items()
    }
    assert parts["bigram"].keys() == {"token embedding", "output layer"}
    assert parts["single-head"].keys() == {
        "token embedding",
        "position embedding",
        "attention",
        "output layer",
    }
    assert parts["multi-head"] == parts["single-head"]  # several heads cost what one costs
    assert parts["residual"]["attention"] == 4 * parts["multi-head"]["attention"]
    assert {"feed-forward", "norms"} <= parts["block"].keys()
    assert "position embedding" not in parts["gpt"]
    assert PRESETS["gpt2"].bias
    assert "position embedding" in parts["gpt2"]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_parts_add_up_to_the_whole(preset: str) -> None:
    model = GPT(GPTConfig(vocab_size=65, **PRESETS[preset].model_dump()))
    assert sum(model.parameters_by_part().values()) == model.num_parameters()


def test_the_default_model_has_the_size_it_is_documented_with() -> None:
    model = GPT(GPTConfig(vocab_size=65))
    attention, feed_forward = 4 * 4 * 128**2, 4 * 3 * 128 * 344
    assert model.num_parameters() == 65 * 128 + attention + feed_forward + 9 * 128 == 800_000


def test_tied_embeddings_are_one_tensor() -> None:
    tied, untied = (GPT(GPTConfig(vocab_size=9, tied_embeddings=t)) for t in (True, False))
    assert tied.head.weight.data_ptr() == tied.token_embedding.weight.data_ptr()
    assert untied.num_parameters() - tied.num_parameters() == 9 * 128


def test_dropout_follows_train_and_eval(make_gpt: Make) -> None:
    model = make_gpt(dropout=0.5)
    ids = torch.randint(0, model.config.vocab_size, (1, 8))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_bad_ids_are_refused(make_gpt: Make) -> None:
    model = make_gpt()
    vocab = model.config.vocab_size
    with pytest.raises(ValueError, match=rf"0 … {vocab - 1} .* got 0 … {vocab}"):
        model(torch.tensor([[0, vocab]]))
    with pytest.raises(ValueError, match="got -1 … 0"):
        model(torch.tensor([[-1, 0]]))
    with pytest.raises(TypeError, match=r"int64.*float32"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"shape \(B, T\), got \(3,\)"):
        model(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="9 tokens exceed block_size=8"):
        model(torch.zeros(1, 9, dtype=torch.int64))
    with pytest.raises(ValueError, match="ids are on meta but the model is on cpu"):
        model(torch.zeros(1, 3, dtype=torch.int64, device="meta"))


def test_the_cache_counts_towards_block_size(make_gpt: Make) -> None:
    model = make_gpt()
    cache = model.new_cache()
    model(torch.zeros(1, 6, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="3 tokens after 6 cached exceed block_size=8"):
        model(torch.zeros(1, 3, dtype=torch.int64), cache=cache)


@pytest.mark.parametrize(
    "preset", [preset for preset in PRESETS if PRESETS[preset].n_head > 1 and PRESETS[preset].n_layer]
)
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@pytest.mark.parametrize("pieces", [[8], [1] * 8, [2, 1, 5], [7, 1], [3, 3, 2]], ids=str)
def test_cached_equals_uncached_at_every_position(
    make_gpt: Make, preset: str, n_kv_head: int, pieces: list[int]
) -> None:
    model = make_gpt(preset, n_kv_head=n_kv_head)
    ids = torch.randint(0, model.config.vocab_size, (2, 8))
    cache = model.new_cache(batch=2)
    parts = [model(part, cache=cache) for part in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-5, atol=1e-5)


def test_compiles_without_graph_breaks(make_gpt: Make) -> None:
    model = make_gpt()
    ids = torch.randint(0, model.config.vocab_size, (2, 8))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids), model(ids))
