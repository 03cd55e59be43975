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
    """project, split, scores, weights, weigh, join or mix."""
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
        flat_q, flat_k, flat_v = mha.project(x, x if context is None else context)
        q, k, v = mha.split(flat_q, flat_k, flat_v)
        score = reference.scores(q, k, 1.0)
        weight = reference.weights(score)
        heads = reference.weigh(weight, v)
        joined = mha.join(heads)
        return [
            ("project", "q", "B T H·K", flat_q),
            ("project", "k", f"B {S} G·K", flat_k),
            ("project", "v", f"B {S} G·V", flat_v),
            ("split", "q", "B H T K", q),
            ("split", "k", f"B G {S} K", k),
            ("split", "v", f"B G {S} V", v),
            ("scores", "scores", f"B H T {S}", score),
            ("weights", "weights", f"B H T {S}", weight),
            ("weigh", "heads", "B H T V", heads),
            ("join", "joined", "B T H·V", joined),
            ("mix", "output", "B T D", mha.mix(joined)),
        ]
