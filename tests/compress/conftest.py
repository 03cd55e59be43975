"""Small models, and the changes of their weights that leave what they compute as it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.attention import Rotary
from headwise.compress.planes import plane_matrix
from headwise.hub.surgery import layer_handles, next_token_logits, read_weights, settle, write_weights
from headwise.model import GPT, PRESETS, GPTConfig

VOCAB = 31


@pytest.fixture
def make_gpt() -> Callable[..., GPT]:
    """Build a GPT of a preset, its weights large enough that every part matters."""

    def make(preset: str = "gpt", *, seed: int = 0, interleaved: bool = False, **changes: Any) -> GPT:
        settings = PRESETS[preset].model_dump(exclude_defaults=True)
        small = {"d_model": 24, "n_layer": 2, "block_size": 32, "vocab_size": VOCAB}
        config = GPTConfig(**(settings | small | changes))
        torch.manual_seed(seed)
        model = GPT(config).eval()
        for block in model.blocks if interleaved else ():
            block.attention.rotary = Rotary(config.head_width, interleaved=True)
        return enlarged(model)

    return make


def enlarged(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.normal_(std=1.3 * parameter.shape[1] ** -0.5)
    return model


@pytest.fixture
def make_hf() -> Callable[..., nn.Module]:
    """Build a small Llama-shaped model of transformers."""

    def make(kind: str, *, seed: int = 0, **changes: Any) -> nn.Module:
        import transformers

        values: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 64,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": None,
        }
        config = getattr(transformers, f"{kind}Config")(**(values | changes))
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        return enlarged(model)

    return make


@pytest.fixture
def rows() -> list[Tensor]:
    torch.manual_seed(5)
    return list(torch.randint(VOCAB, (4, 2, 24)))


@pytest.fixture
def scramble() -> Callable[..., nn.Module]:
    """Give heads other bases, in ways that leave what the model computes as it is."""

    def change(
        model: nn.Module, *, seed: int = 1, permute: bool = False, orthogonal: bool = False
    ) -> nn.Module:
        torch.manual_seed(seed)
        made = copy.deepcopy(model)
        for handle in layer_handles(made):
            weights = read_weights(handle)
            g, size = weights.n_kv_head, weights.group_size
            b = _bases(g, weights.v.shape[1], orthogonal)
            v = b @ weights.v
            o = weights.o @ torch.linalg.inv(b).repeat_interleave(size, dim=0)
            o_bias = weights.o_bias
            if o_bias is not None:
                shift = torch.randn(g, v.shape[1], dtype=v.dtype)
                v[:, :, -1] += shift
                o_bias = o_bias - torch.einsum("hov,hv->o", o, shift.repeat_interleave(size, dim=0))
            if handle.rotary is None:
                a = _bases(g, handle.d_head, orthogonal)
            else:
                z = torch.randn(g, handle.rotary_width // 2, dtype=torch.complex128)
                length = torch.ones(()) if orthogonal else 0.5 + torch.rand(z.shape, dtype=torch.float64)
                turned = plane_matrix(z / z.abs() * length, handle.rotary)
                rest = _bases(g, handle.d_head - handle.rotary_width, orthogonal)
                a = torch.stack([torch.block_diag(x, y) for x, y in zip(turned, rest, strict=True)])
            k = a @ weights.k
            q = torch.linalg.inv(a).mT.repeat_interleave(size, dim=0) @ weights.q
            weights = replace(weights, q=q, k=k, v=v, o=o, o_bias=o_bias)
            if permute:
                weights = weights.take_groups(torch.randperm(g).tolist())
            write_weights(handle, weights)
        settle(made)
        return made

    return change


def _bases(count: int, width: int, orthogonal: bool) -> Tensor:
    drawn = torch.randn(count, width, width, dtype=torch.float64)
    q, _ = torch.linalg.qr(drawn)
    return q if orthogonal else q @ torch.diag_embed(0.5 + torch.rand(count, width, dtype=q.dtype))


@pytest.fixture
def gap() -> Callable[[nn.Module, nn.Module], float]:
    """The largest difference between the logits of two models on texts that neither was fitted to."""

    @torch.no_grad()
    def largest(one: nn.Module, other: nn.Module) -> float:
        torch.manual_seed(11)
        ids = torch.randint(VOCAB, (3, 30))
        return float((next_token_logits(one, ids) - next_token_logits(other, ids)).abs().max())

    return largest
