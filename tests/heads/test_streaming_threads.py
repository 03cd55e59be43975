"""Heads shared out among threads give what one thread gives, and PyTorch's threads are as before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.attention import Mask
from headwise.heads import AttentionCall, StatisticsCollector, streaming_threads
from headwise.hub import AttentionLayer, TokenBatch


def collected(threads: int, monkeypatch: pytest.MonkeyPatch, mask: Mask) -> torch.Tensor:
    monkeypatch.setattr(streaming_threads, "_WORTH_A_THREAD", 1)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 40, 8, generator=generator)
    k, v = (torch.randn(2, 3, 40, 8, generator=generator) for _ in range(2))
    torch.manual_seed(1)
    projection = nn.Linear(48, 10)
    layer = AttentionLayer(
        0, "attention", projection, 6, 3, 8, 8, cross=False, causal=True, o_proj=projection
    )
    index = torch.arange(40).expand(2, 40)
    batch = TokenBatch(index, index < torch.tensor([[40], [25]]), index == 0, index % 5 == 3)
    sink = torch.randn(6, generator=generator)
    collector = StatisticsCollector([layer])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        collector.update(AttentionCall(layer, q, k, v, torch.zeros(2, 6, 40, 8), mask, 0.3, sink=sink), batch)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    return torch.cat([sums.flatten() for sums in collector.state().values()])


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_changes_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Mask.causal()
    one, more = (collected(number, monkeypatch, mask) for number in (1, threads))
    torch.testing.assert_close(more, one, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_masks_that_differ_by_head_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = torch.rand(1, 6, 40, 40, generator=torch.Generator().manual_seed(3)) < 0.5
    mask = Mask.causal() & Mask.keep(keep)
    one, more = (collected(number, monkeypatch, mask) for number in (1, 3))
    torch.testing.assert_close(more, one, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_fault_in_a_thread_is_raised_and_threads_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(streaming_threads.Sweep, "run", fail)
    with pytest.raises(RuntimeError, match="broken"):
        collected(2, monkeypatch, Mask.causal())
