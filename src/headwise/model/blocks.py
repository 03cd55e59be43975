"""The parts of a layer: normalisation, feed-forward, and the block that joins them with attention."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from headwise.attention import LayerCache, Mask, MultiHeadAttention, Rotary
from headwise.model.config import ModelSettings
from headwise.model.heads import NoHeads


def make_norm(settings: ModelSettings) -> nn.Module:
    """The normalisation that `settings.norm` names, over the last axis."""
    if settings.norm == "layer":
        return nn.LayerNorm(settings.d_model, eps=settings.norm_eps, bias=settings.bias)
    if settings.norm == "rms":
        return nn.RMSNorm(settings.d_model, eps=settings.norm_eps)
    return nn.Identity()


class GELUFeedForward(nn.Module):
    """W_2 · gelu(W_1 x), as in GPT-2."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.up_proj = nn.Linear(settings.d_model, settings.hidden_width, bias=settings.bias)
        self.down_proj = nn.Linear(settings.hidden_width, settings.d_model, bias=settings.bias)
        self.dropout = settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))
        return F.dropout(y, self.dropout, self.training)


class SwiGLUFeedForward(nn.Module):
    """W_down (silu(W_gate x) ⊙ W_up x), as in Llama (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(settings.d_model, settings.hidden_width, bias=settings.bias)
        self.up_proj = nn.Linear(settings.d_model, settings.hidden_width, bias=settings.bias)
        self.down_proj = nn.Linear(settings.hidden_width, settings.d_model, bias=settings.bias)
        self.dropout = settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """One layer: norm → attention, norm → feed-forward, each added to its input if `residual`."""

    def __init__(
        self, settings: ModelSettings, rotary: Rotary | None, heads: tuple[int, int] | None = None
    ) -> None:
        """heads: query heads and key/value heads of this layer, default those of the settings."""
        super().__init__()
        n_head, n_kv_head = heads or (settings.n_head, settings.kv_heads)
        self.residual = settings.residual
        self.attention_norm = make_norm(settings)
        self.attention: MultiHeadAttention | NoHeads
        if n_head:
            self.attention = MultiHeadAttention(
                settings.d_model,
                n_head,
                n_kv_head=n_kv_head,
                d_head=settings.head_width,
                bias=settings.bias,
                dropout=settings.dropout,
                rotary=rotary,
                output_projection=settings.output_projection == "learned",
            )
        else:
            self.attention = NoHeads(settings.d_model, bias=settings.bias)
        self.mlp: nn.Module | None = None
        if settings.mlp != "none":
            self.mlp_norm = make_norm(settings)
            self.mlp = (GELUFeedForward if settings.mlp == "gelu" else SwiGLUFeedForward)(settings)

    def forward(
        self, x: Tensor, mask: Mask, cache: LayerCache | None = None, return_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """`(B, T, D) → (B, T, D)`, and the heads' weights `(B, H, T, S)` if asked for."""
        attended = self.attention(
            self.attention_norm(x), mask=mask, cache=cache, return_weights=return_weights
        )
        attended, weights = attended if return_weights else (attended, None)
        x = x + attended if self.residual else attended
        if self.mlp is not None:
            changed = self.mlp(self.mlp_norm(x))
            x = x + changed if self.residual else changed
        return x, weights
