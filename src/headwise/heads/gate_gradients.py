"""How much each head matters, from gradients: one backward pass instead of a run per head.

Each head's output z_h is multiplied by a gate ξ_h = 1; ∂L/∂ξ_h says how the loss moves as the head is turned
down (Michel, Levy and Neubig 2019, eq. 2).

Letters: M texts, B texts of a batch, H query heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.documents import NOTHING, Batch, Document, Text, batches_of, make_batch, make_documents
from headwise.heads.seam import observe
from headwise.heads.sharding import gathered, this_shard
from headwise.heads.silencing import How, Silencing
from headwise.heads.sweep import OnProgress, tokens_at_once
from headwise.hub import Subject

if TYPE_CHECKING:
    from pandas import DataFrame


@torch.inference_mode(mode=False)  # gradients are needed, whatever the caller's mode
def importance(
    subject: Subject,
    texts: Sequence[Text],
    *,
    how: How = "zero",
    seed: int = 0,
    tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> DataFrame:
    """Estimate from gradients what each head is worth; `ablate` measures it.

    Columns, one row per head, of a loss in nats per predicted token:
    layer, head: counted from 0.
    importance: I_h / ‖I of its layer‖₂ with I_h the mean over texts of |∂L/∂ξ_h|, the absolute value taken
        for each text before the mean. It compares the heads of a layer.
    gradient: I_h itself.
    predicted: what silencing the head costs to first order, -∂L/∂ξ_h over all tokens, with its sign.

    texts, how, seed, tokens, on_progress: as for `ablate`; with how="mean" or "resample" the gate leads from
    z_h to what takes its place. All of a text's tokens weigh the same in its L, and all texts in the mean.

    Raises ValueError as `ablate`.
    """
    from pandas import DataFrame

    tokens = tokens_at_once(subject, tokens)
    documents = make_documents(subject, texts, seed=seed)
    silencing = Silencing.make(subject, [documents], how, reference=documents, tokens=tokens, seed=seed)
    gradients = _gradients(subject, documents, silencing, tokens, on_progress)  # (M, heads), sums over tokens
    if not bool(torch.isfinite(gradients).all()):
        raise ValueError(
            f"{subject.name} has gradients that are not finite (NaN or infinite), so heads cannot be ranked "
            "by them: its weights are damaged, or too large for their dtype"
        )
    counts = torch.tensor([document.predicted for document in documents], dtype=torch.float64)
    absolute = (gradients / counts.unsqueeze(1)).abs().mean(0)
    predicted = -gradients.sum(0) / counts.sum()
    rows, start = [], 0
    for layer in subject.layers:
        of_layer = absolute[start : start + layer.n_head]
        norm = of_layer.norm()
        for head, each in enumerate(of_layer.tolist()):
            rows.append(
                {
                    "layer": layer.index,
                    "head": head,
                    "importance": each / float(norm) if norm else 0.0,
                    "gradient": each,
                    "predicted": float(predicted[start + head]),
                }
            )
        start += layer.n_head
    return DataFrame(rows)


def _gradients(
    subject: Subject,
    documents: Sequence[Document],
    silencing: Silencing,
    tokens: int,
    on_progress: OnProgress | None,
) -> Tensor:
    """Return ∂(loss summed over the text's tokens)/∂ξ_h of each text, (M, heads of all layers)."""
    shard = this_shard()
    shares = batches_of(documents, tokens)
    mine = [numbers for unit, numbers in enumerate(shares) if shard.takes(unit)]
    heads = sum(layer.n_head for layer in subject.layers)
    gradients = torch.zeros(len(documents), heads, dtype=torch.float64)
    for done, numbers in enumerate(mine, 1):
        batch = make_batch(subject, documents, numbers)
        gradients[numbers] = _of_batch(subject, batch, silencing.fills(batch)).double().cpu()
        if on_progress is not None:
            on_progress(done, len(mine))
    return gathered(gradients)


def _of_batch(subject: Subject, batch: Batch, fills: dict[int, Tensor]) -> Tensor:
    """Return the gradients (B, heads of all layers).

    Each text has gates of its own, so that one backward pass of the sum gives each text's gradient.
    """
    size, dtype = batch.targets.shape[0], next(subject.model.parameters()).dtype
    gates = {
        layer.index: torch.ones(size, layer.n_head, dtype=dtype, device=subject.device, requires_grad=True)
        for layer in subject.layers
        if layer.n_head
    }
    there = batch.targets != NOTHING
    with torch.enable_grad(), observe(subject.model, gates=gates, fills=fills):
        logits = subject.run(batch.tokens)[there]
        loss = F.cross_entropy(logits.float(), batch.targets[there], reduction="sum")
        given = torch.autograd.grad(loss, list(gates.values()))
    return torch.cat(given, dim=1)
