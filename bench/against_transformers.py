"""Hold the statistics of a Hugging Face model against the weights that transformers itself gives out.

    python bench/against_transformers.py FOLDER [TOKENS]

The model is loaded twice: as it comes, for `heads.statistics`, and with attn_implementation="eager", whose
output_attentions are put into the definitions, densely and in float64. Prints the largest difference of each
statistic over all heads, and the heads by role.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from transformers import AutoModel

from headwise.heads import roles, statistics
from headwise.heads.texts import sample_texts
from headwise.hub import open_subject
from headwise.text.corpus import open_corpus

TEXTS = 2


def dense(
    weights: Tensor, special: Tensor, punctuation: Tensor, causal: bool
) -> dict[str, tuple[Tensor, int]]:
    """Return of each statistic the sum over the queries of one text, (H,), and how many queries count.

    weights: (H, T, T).
    """
    T = weights.shape[1]
    i, j = torch.arange(T).unsqueeze(1), torch.arange(T)
    visible = (j <= i) if causal else torch.ones(T, T, dtype=torch.bool)

    def mass(keys: Tensor) -> tuple[Tensor, int]:
        """The mass on some keys (T, T), over the queries that see one of them."""
        seen = keys & visible
        return (weights * seen).sum(dim=(1, 2)), int(seen.any(dim=1).sum())

    return {
        "self": mass(j == i),
        "previous": mass(j == i - 1),
        "next": mass(j == i + 1),
        "first": mass((j == 0).expand(T, T)),
        "band": mass((j - i).abs() <= 2),
        "special": mass(special.expand(T, T)),
        "punctuation": mass(punctuation.expand(T, T)),
        "entropy": (torch.special.entr(weights).sum(dim=(1, 2)), T),
        "confidence": (weights.amax(dim=2).sum(dim=1), T),
        "distance": ((weights * (j - i).abs()).sum(dim=(1, 2)), T),
    }


def main(folder: str, tokens: int = 256) -> None:
    subject = open_subject(folder)
    texts = sample_texts(subject, open_corpus("python-docs"), texts=TEXTS, length=tokens)
    if {len(text) for text in texts} != {tokens}:
        raise SystemExit(f"{subject.name} gives no {TEXTS} texts of {tokens} tokens")
    table = statistics(subject, texts, repeated=True).table
    batch = subject.batch(texts)
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        attentions = eager(input_ids=batch.ids, output_attentions=True).attentions
    largest: dict[str, float] = {}
    for layer, weights in enumerate(attentions):
        each = [
            dense(weights[row].double(), batch.special[row], batch.punctuation[row], subject.causal)
            for row in range(TEXTS)
        ]
        ours = table[table["layer"] == layer]
        for name in each[0]:
            count = sum(one[name][1] for one in each)
            found = torch.tensor(ours[name].to_numpy(), dtype=torch.float64)
            if count == 0:
                if not found.isnan().all():
                    raise SystemExit(f"no query has a key for {name!r}, but layer {layer} has a number there")
                continue
            expected = torch.stack([one[name][0] for one in each]).sum(dim=0) / count
            largest[name] = max(largest.get(name, 0.0), float((found - expected).abs().max()))
    print(f"{folder}: {len(table)} heads, {TEXTS} texts of {tokens} tokens; largest difference")
    for name, difference in largest.items():
        print(f"  {name:<12} {difference:.1e}")
    print(roles(table)["role"].value_counts().to_string())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
