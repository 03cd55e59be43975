"""Two layers of attention learn to look things up; one cannot. Takes about two minutes on two CPU cores.

Models of attention only, one head per layer, are trained on random letters that repeat after a while. Who has
seen a letter before can look up what followed it then: an induction head does that, and it needs a head of an
earlier layer that tells each letter what stands before it (Olsson et al. 2022). The example finds both heads
by name, then silences each.

Run: python examples/induction.py [STEPS]
"""

import math
import string
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads import observe, roles, statistics
from headwise.hub import Subject
from headwise.model import GPT, GPTConfig
from headwise.report.figures import save_figure
from headwise.report.heatmap import heatmaps
from headwise.text import Tokenizer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
LETTERS = string.ascii_letters + string.digits + "+-"
LENGTH = 64


def repeated_letters(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return ids (rows, LENGTH) that repeat with a period of each row's own, and the periods (rows, 1)."""
    period = torch.randint(LENGTH // 4, LENGTH // 2 + 1, (rows, 1), generator=generator)
    once = torch.randint(len(LETTERS), (rows, LENGTH // 2), generator=generator)
    return once.gather(1, torch.arange(LENGTH).expand(rows, -1) % period), period


def losses(model: GPT, ids: Tensor) -> Tensor:
    """Return the loss of each letter but the first, (rows, LENGTH - 1), in nats."""
    return F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")


def second_half_loss(model: GPT) -> float:
    """Return the loss where the answer can be looked up."""
    ids, period = repeated_letters(256, torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float(losses(model, ids)[torch.arange(1, LENGTH) > period].mean())


def trained(n_layer: int) -> GPT:
    """Return a model of attention only, after STEPS steps."""
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=len(LETTERS),
        block_size=LENGTH,
        n_layer=n_layer,
        n_head=1,
        d_model=64,
        mlp="none",
        position="learned",
        norm="layer",
        tied_embeddings=False,
    )
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * max(0.05, 1 - step / STEPS)
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        loss = losses(model, repeated_letters(64, generator)[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        if step % 250 == 0:
            print(
                f"  step {step:4d}: loss where it can be looked up {second_half_loss(model):.3f}", flush=True
            )
    return model.eval()


tokenizer = Tokenizer.from_alphabet(LETTERS)
texts = repeated_letters(64, torch.Generator().manual_seed(2))[0].tolist()
for n_layer in (1, 2):
    print(f"{n_layer} layer{'s' * (n_layer > 1)}")
    model = trained(n_layer)
    subject = Subject.of(model, tokenizer)
    found = statistics(subject, texts, repeated=True)
    print(roles(found.table)[["layer", "head", "role", "strength", "evidence"]].to_string(index=False))
    guessing = math.log(len(LETTERS))
    print(f"loss where it can be looked up: {second_half_loss(model):.3f} (guessing: {guessing:.3f})")
    for layer in range(n_layer):
        with observe(model, gates={layer: torch.zeros(1)}):
            print(f"  with layer {layer} head 0 silent: {second_half_loss(model):.3f}")

half = torch.randperm(len(LETTERS), generator=torch.Generator().manual_seed(3))[:12].tolist()
ids = half + half
_, weights = model(torch.tensor([ids]), return_weights=True)
picture = Path("induction.png")
save_figure(
    heatmaps(weights, tokenizer.labels(ids), visible=torch.ones(24, 24).tril().bool().numpy()), picture
)
print(f"drew the two heads on {tokenizer.decode(ids)} to {picture}")
