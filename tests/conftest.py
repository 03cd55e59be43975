"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from headwise.hub.subject import OwnSubject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which lets its children ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


RECALLED = "abcdefghijklmnopqrstuvwxyz 0123456789.\n"


@pytest.fixture(scope="session")
def make_recaller() -> Callable[..., OwnSubject]:
    """Build a model by hand that says, at each character, what followed it where it stood before.

    Head 0 of layer 0 tells each character the one before it; head 0 of layer 1 looks for where that is what
    stands here, and passes on what it finds there. The other heads say nothing.
    """

    def make(n_head: int = 4, length: int = 80, *, knows: int | None = None) -> OwnSubject:
        tokenizer = Tokenizer.from_alphabet(RECALLED)
        V, T = tokenizer.vocab_size, length
        before, found, place = V, 2 * V, 3 * V  # where in the stream what is written
        shape = {"n_layer": 2, "n_head": n_head, "d_head": T, "d_model": 3 * V + T, "block_size": T}
        kind = {"position": "learned", "norm": "none", "mlp": "none", "tied_embeddings": False}
        model = GPT(GPTConfig(vocab_size=V, **shape, **kind))
        letters, places = torch.eye(V), torch.eye(T)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.token_embedding.weight[:, :V] = letters
            model.position_embedding.weight[:, place:] = places
            model.position_embedding.weight[0, before:found] = -1.0  # nothing stands before the first
            model.head.weight[:, found : found + V] = 10.0 * letters
            first, second = (block.attention for block in model.blocks)
            first.q_proj.weight[:T, place:] = 1000.0 * places.roll(-1, dims=0)  # looks one place back
            first.k_proj.weight[:T, place:] = places
            second.q_proj.weight[:V, :V] = 1000.0 * letters
            second.k_proj.weight[:V, before : before + V] = letters
            for attention, target in ((first, before), (second, found)):
                attention.v_proj.weight[:V, :V] = letters
                attention.o_proj.weight[target : target + V, :V] = letters
            if knows is not None:  # forgets the characters from this one on
                second.v_proj.weight[knows:V, :V] = 0.0
        return OwnSubject(model.eval(), tokenizer, f"recalls, {n_head} heads")

    return make
