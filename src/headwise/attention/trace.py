"""Every step of multi-head attention with the shape it gives, found by running it without numbers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.func import functional_call

from headwise.attention import reference
from headwise.attention.multi_head import MultiHeadAttention


class ShapeRecord(NamedTuple):
    """One tensor of the computation."""

    step: str
    """project, split, norm (with qk_norm), rotate (with rotary), scores, weights, weigh, join or mix."""
    name: str
    """Which tensor of the step: q, k, v, scores, weights, heads, joined or output."""
    letters: str
    """The shape in letters, such as "B H T S"."""
    shape: tuple[int, ...]


def trace_shapes(mha: MultiHeadAttention, x: Tensor, context: Tensor | None = None) -> list[ShapeRecord]:
    """Return the shape of every step of ``mha(x, context)``, in order; in self-attention S is written T.

    The steps run on PyTorch's meta device, so no numbers are computed and no memory is taken; x and context
    may lie on any device, that one included. Raises ValueError or TypeError as the module does for inputs
    that do not fit.
    """
    weightless = {f"mha.{name}": parameter.detach().to("meta") for name, parameter in mha.named_parameters()}
    inputs = x.to("meta"), None if context is None else context.to("meta")
    steps: list[tuple[str, str, str, Tensor]] = functional_call(_Steps(mha), weightless, inputs)
    return [ShapeRecord(step, name, letters, tuple(tensor.shape)) for step, name, letters, tensor in steps]


class _Steps(nn.Module):
    """Runs the module's own steps, and the reference's between them, keeping what each returns."""

    def __init__(self, mha: MultiHeadAttention) -> None:
        super().__init__()
        self.mha = mha

    def forward(self, x: Tensor, context: Tensor | None) -> list[tuple[str, str, str, Tensor]]:
        mha = self.mha
        mha.check_inputs(x, context)
        S = "T" if context is None else "S"
        source = x if context is None else context
        flat = mha.q_proj(x), mha.k_proj(source), mha.v_proj(source)
        steps: list[tuple[str, str, str, Tensor]] = [
            ("project", "q", "B T H·K", flat[0]),
            ("project", "k", f"B {S} G·K", flat[1]),
            ("project", "v", f"B {S} G·V", flat[2]),
        ]

        def add(step: str, **tensors: Tensor) -> None:
            letters = {"q": "B H T K", "k": f"B G {S} K", "v": f"B G {S} V"}
            steps.extend((step, name, letters[name], tensor) for name, tensor in tensors.items())

        heads = mha.n_head, mha.n_kv_head, mha.n_kv_head
        q, k, v = (mha.split(part, count) for part, count in zip(flat, heads, strict=True))
        add("split", q=q, k=k, v=v)
        if mha.q_norm is not None and mha.k_norm is not None:
            q, k = mha.q_norm(q), mha.k_norm(k)
            add("norm", q=q, k=k)
        if mha.rotary is not None:
            q, k = mha.turn(q, k)
            add("rotate", q=q, k=k)
        score = reference.scores(q, k, 1.0)
        weight = score.softmax(dim=-1)
        attended = reference.weigh(weight, v)
        joined = mha.join(attended)
        return [
            *steps,
            ("scores", "scores", f"B H T {S}", score),
            ("weights", "weights", f"B H T {S}", weight),
            ("weigh", "heads", "B H T V", attended),
            ("join", "joined", "B T H·V", joined),
            ("mix", "output", "B T O" if mha.d_out != mha.d_model else "B T D", mha.mix(joined)),
        ]
