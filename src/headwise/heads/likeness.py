"""How alike the heads of a model are, by what they give and by where they look.

Letters: B texts, T tokens, N tokens of all texts, H query heads, V width of a value, D width of the layer's
output; n and m heads of two sides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headwise.heads.documents import Document, Text, batches_of, make_batch, make_documents
from headwise.heads.map_distance import map_distances
from headwise.heads.seam import AttentionCall, observe
from headwise.heads.sharding import gathered, this_shard
from headwise.heads.sweep import OnProgress, tokens_at_once
from headwise.hub import AttentionLayer, Subject

if TYPE_CHECKING:
    from pandas import DataFrame

By = Literal["outputs", "correlation", "maps"]
"""outputs: linear CKA of what heads add to the stream. correlation: of the same. maps: 1 - the mean
Jensen–Shannon distance of their weights."""

BYS = ("outputs", "correlation", "maps")


def similarity(
    subject: Subject,
    texts: Sequence[Text],
    *,
    by: By = "outputs",
    across_layers: bool = False,
    tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> DataFrame:
    """Measure how alike each two heads are: 1 for the same.

    by="outputs": linear CKA of what they add to the stream, X_h = z_h W_O^h over N real tokens, centred:
        ‖X_gᵀ X_h‖² / (‖X_gᵀ X_g‖ ‖X_hᵀ X_h‖) with Frobenius norms (Kornblith et al. 2019, eq. 4). From 0 to
        1; it does not see rotations, so that heads that tell the same in other directions are alike.
    by="correlation": ⟨X_g, X_h⟩ / (‖X_g‖ ‖X_h‖), from -1 to 1: 1 where one adds what the other adds, up to
        a positive factor.
    by="maps": 1 - the mean Jensen–Shannon distance of their weights per query (see `map_distances`), from 0
        (never look at the same keys) to 1. The first token of a text does not count in a causal model: it
        sees only itself.

    across_layers: also between heads of different layers; NaN there otherwise.
    texts, tokens, on_progress: as for `ablate`.

    Returns a symmetric matrix, rows and columns named by (layer, head); NaN for a head that adds nothing.
    Under `torchrun` sums are added up in another order, so that the last digits of float64 may differ.

    Raises ValueError for texts that do not fit or have one token each, and an unknown `by`.
    """
    from pandas import DataFrame, MultiIndex

    if by not in BYS:
        raise ValueError(f"by must be one of {', '.join(BYS)}, got {by!r}")
    documents = make_documents(subject, texts, measure="output")
    layers = subject.layers
    couples = [
        (a.index, b.index)
        for a in layers
        for b in layers[a.index :]
        if a.n_head and b.n_head and (across_layers or a is b)
    ]
    likeness = Likeness(subject, subject, documents, couples, [by], tokens_at_once(subject, tokens)).measure(
        on_progress
    )[by]
    start = [0]
    for layer in layers:
        start.append(start[-1] + layer.n_head)
    matrix = torch.full((start[-1], start[-1]), torch.nan, dtype=torch.float64)
    for (a, b), block in likeness.items():
        matrix[start[a] : start[a + 1], start[b] : start[b + 1]] = block
        matrix[start[b] : start[b + 1], start[a] : start[a + 1]] = block.T
    names = MultiIndex.from_tuples(
        [(layer.index, head) for layer in layers for head in range(layer.n_head)], names=["layer", "head"]
    )
    return DataFrame(matrix.numpy(), index=names, columns=names)


@dataclass(frozen=True, eq=False)
class Likeness:
    """Compares heads of two models on the same documents; both may be one model."""

    a: Subject
    b: Subject
    documents: Sequence[Document]
    couples: Sequence[tuple[int, int]]
    """Layers of a and b whose heads are compared."""
    bys: Collection[By]
    tokens: int

    def measure(self, on_progress: OnProgress | None = None) -> dict[By, dict[tuple[int, int], Tensor]]:
        """Return how alike the heads are, (n, m), by each measure and couple of layers.

        Raises ValueError for texts of one token each, on which all heads do the same.
        """
        if all(len(document.ids) < 2 for document in self.documents):
            raise ValueError(
                "the texts have one token each, on which heads cannot be told apart; give longer ones"
            )
        shard, shares = this_shard(), batches_of(self.documents, self.tokens)
        mine = [unit for unit in range(len(shares)) if shard.takes(unit)]
        sums = _Sums()
        for done, unit in enumerate(mine, 1):
            self._add(shares[unit], sums)
            if on_progress is not None:
                on_progress(done, len(mine))
        sums.gather(self._shapes())
        return {by: {couple: self._alike(by, couple, sums) for couple in self.couples} for by in self.bys}

    def _alike(self, by: By, couple: tuple[int, int], sums: _Sums) -> Tensor:
        if by == "maps":
            return 1 - sums.of[f"distance {couple}"] / sums.of["queries"]
        return self._of_outputs(by, couple, sums)

    @property
    def _outputs(self) -> bool:
        return bool({"outputs", "correlation"} & set(self.bys))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every sum's name with its shape, so that a process without work knows them too."""
        a, b = self.a.layers, self.b.layers
        shapes: dict[str, tuple[int, ...]] = {"tokens": (), "queries": ()}
        for i, j in self.couples:
            if "maps" in self.bys:
                shapes[f"distance {(i, j)}"] = a[i].n_head, b[j].n_head
        if not self._outputs:
            return shapes
        for i, j in self.couples:
            wide_a, wide_b = _width(a[i]), _width(b[j])
            shapes |= {f"product {(i, j)}": (wide_a, wide_b), f"a {i}": (wide_a,), f"b {j}": (wide_b,)}
            shapes |= {f"square a {i}": (wide_a, wide_a), f"square b {j}": (wide_b, wide_b)}
        return shapes

    def _add(self, numbers: list[int], sums: _Sums) -> None:
        """Add what a batch gives."""
        batch = make_batch(self.a, self.documents, numbers)
        real = batch.tokens.real
        one = calls_of(self.a, numbers, self.documents)
        two = one if self.b is self.a else calls_of(self.b, numbers, self.documents)
        queries = real & (real.cumsum(1) > 1) if self.a.causal else real
        sums.add("queries", queries.sum())
        sums.add("tokens", real.sum())
        for i, j in self.couples if "maps" in self.bys else ():
            sums.add(f"distance {(i, j)}", map_distances(one[i], two[j], queries))
        if not self._outputs:
            return
        z_a = {i: _joined(one[i], real) for i in {i for i, _ in self.couples}}
        z_b = z_a if two is one else {j: _joined(two[j], real) for j in {j for _, j in self.couples}}
        for name, side in (("a", z_a), ("b", z_b)):
            for i, z in side.items():
                sums.add(f"{name} {i}", z.sum(0))
                sums.add(f"square {name} {i}", z.T @ z)
        for i, j in self.couples:
            sums.add(f"product {(i, j)}", z_a[i].T @ z_b[j])

    def _of_outputs(self, by: By, couple: tuple[int, int], sums: _Sums) -> Tensor:
        """Return how alike outputs are from the sums of z's products, centred: X_g = z_g W_g."""
        i, j = couple
        tokens = sums.of["tokens"]
        mean_a, mean_b = sums.of[f"a {i}"] / tokens, sums.of[f"b {j}"] / tokens
        a, b = self.a.layers[i], self.b.layers[j]
        cross = sums.of[f"product {couple}"] - tokens * torch.outer(mean_a, mean_b)
        own_a = sums.of[f"square a {i}"] - tokens * torch.outer(mean_a, mean_a)
        own_b = sums.of[f"square b {j}"] - tokens * torch.outer(mean_b, mean_b)
        w_a, w_b = _weight(a), _weight(b)  # (H, V, D)
        width = w_a.shape[1], w_b.shape[1]
        cross = cross.view(a.n_head, width[0], b.n_head, width[1]).transpose(1, 2)  # (n, m, V, V)
        inner_a, inner_b = _diagonal(own_a, a.n_head), _diagonal(own_b, b.n_head)  # (n, V, V), (m, V, V)
        gram_a, gram_b = w_a @ w_a.mT, w_b @ w_b.mT
        if by == "outputs":
            # ‖W_gᵀ C W_h‖² = tr(C G_h Cᵀ G_g) with G = W Wᵀ, so nothing of width D is needed
            shared = ((gram_a[:, None] @ cross) * (cross @ gram_b[None])).sum((2, 3))
            size_a = ((gram_a @ inner_a) * (inner_a @ gram_a)).sum((1, 2)).clamp(min=0).sqrt()
            size_b = ((gram_b @ inner_b) * (inner_b @ gram_b)).sum((1, 2)).clamp(min=0).sqrt()
        else:
            between = w_a[:, None] @ w_b[None].mT  # (n, m, V, V)
            shared = (cross * between).sum((2, 3))
            size_a = (inner_a * gram_a).sum((1, 2)).clamp(min=0).sqrt()
            size_b = (inner_b * gram_b).sum((1, 2)).clamp(min=0).sqrt()
        return shared / torch.outer(size_a, size_b)


@dataclass(eq=False)
class _Sums:
    """Sums by name, in float64 on the CPU."""

    of: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, what: Tensor) -> None:
        what = what.cpu().double()
        self.of[name] = self.of[name] + what if name in self.of else what

    def gather(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Add up those of all processes."""
        for name, shape in shapes.items():
            self.of[name] = gathered(self.of.get(name, torch.zeros(shape, dtype=torch.float64)))


def calls_of(subject: Subject, numbers: list[int], documents: Sequence[Document]) -> dict[int, AttentionCall]:
    """Return what each layer was given and gave for some documents, by its index."""
    calls: dict[int, AttentionCall] = {}
    batch = make_batch(subject, documents, numbers)
    with torch.no_grad(), observe(subject.model, lambda call: calls.update({call.layer.index: call})):
        subject.run(batch.tokens)
    return calls


def _joined(call: AttentionCall, real: Tensor) -> Tensor:
    """Return the heads' outputs of real tokens side by side, (N, H·V) in float64."""
    return call.out.transpose(1, 2)[real].flatten(1).cpu().double()


def _width(layer: AttentionLayer) -> int:
    weight = _weight(layer)
    return weight.shape[0] * weight.shape[1]


def _weight(layer: AttentionLayer) -> Tensor:
    """Return each head's W_O^h, (H, V, D) in float64; without a projection heads stand side by side."""
    weight = layer.output_weight
    if weight is None:
        width: int = layer.module.d_value  # type: ignore[assignment]
        weight = torch.eye(layer.n_head * width)
    by_head: Tensor = weight.detach().cpu().double().T.reshape(layer.n_head, -1, weight.shape[0])
    return by_head


def _diagonal(square: Tensor, heads: int) -> Tensor:
    """Return the blocks (H, V, V) on the diagonal of (H·V, H·V)."""
    blocks = square.view(heads, square.shape[0] // heads, heads, -1)
    return torch.stack([blocks[h, :, h] for h in range(heads)])
