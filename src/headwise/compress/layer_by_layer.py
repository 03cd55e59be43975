"""Running a model one layer after the other, so that each can be changed before the next one is fed.

Letters: B rows of a batch, T tokens, D width of the model, H query heads, V width of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.hub.surgery import LayerHandle, next_token_logits

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""What a module was called with."""


@dataclass(frozen=True, eq=False)
class AttentionRun:
    """What the attention of a layer read and gave for one batch."""

    x: Tensor
    """(B, T, D), the input of the projections."""
    joined: Tensor
    """(B, T, H · V), the heads side by side."""
    y: Tensor
    """(B, T, D), the output."""
    call: Call
    """What it was called with; `run_again` needs it."""


class LayerByLayer:
    """The layers of a model in turn, on a fixed text.

    Between two layers only the hidden states of the text are kept. The model should be in eval mode.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, handles: Sequence[LayerHandle], rows: Sequence[Tensor]) -> None:
        """rows: batches of token ids (B, T).

        Raises:
            ValueError: no rows, so nothing to calibrate on; no layers.
        """
        if not handles:
            raise ValueError(
                "all layers of the model have lost their heads, so there is nothing to calibrate"
            )
        if not rows:
            raise ValueError("there are no tokens to calibrate on; give calibration text")
        self._blocks = _blocks(model, handles[0])
        self._calls: list[list[Call]] = [[] for _ in self._blocks]
        self._next = 0
        with ExitStack() as stack:
            first: list[Call] = []
            stack.enter_context(_recorded_calls(self._blocks[0], first))
            for block, calls in zip(self._blocks, self._calls, strict=True):
                stack.enter_context(_recorded_calls(block, calls, with_hidden=False))
            for batch in rows:
                next_token_logits(model, batch)
        self._hidden = [_hidden(call) for call in first]

    @torch.no_grad()
    def reach(self, handle: LayerHandle) -> None:
        """Run all layers before this one, as they are now."""
        wanted = self._blocks.index(handle.block)
        for position in range(self._next, wanted):
            for number in range(len(self._hidden)):
                self._hidden[number] = self._run(position, number)
        self._next = max(self._next, wanted)

    @torch.no_grad()
    def runs(self, handle: LayerHandle) -> Iterator[AttentionRun]:
        """Run this layer, as it is now, on each batch, and say what its attention did."""
        self.reach(handle)
        for number in range(len(self._hidden)):
            calls: list[Call] = []
            with _recorded_calls(handle.module, calls), _recorded_projections(handle) as seen:
                self._run(self._next, number)
            yield AttentionRun(seen[0], seen[1], seen[2], calls[0])

    def _run(self, position: int, number: int) -> Tensor:
        args, kwargs = _with_hidden(self._calls[position][number], self._hidden[number])
        given = self._blocks[position](*args, **kwargs)
        return cast(Tensor, given[0] if isinstance(given, tuple) else given)


@torch.no_grad()
def run_again(handle: LayerHandle, run: AttentionRun) -> AttentionRun:
    """Run the attention of a layer again, with the weights that it has now, on what it was given."""
    args, kwargs = run.call
    with _recorded_projections(handle) as seen:
        handle.module(*args, **kwargs)
    return AttentionRun(seen[0], seen[1], seen[2], run.call)


def _blocks(model: nn.Module, handle: LayerHandle) -> list[nn.Module]:
    """Return all layers of the model: those beside the one of the handle."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and any(block is handle.block for block in module):
            return list(module)
    raise ValueError(f"{handle.name} is not part of a list of layers in {type(model).__name__}")


@contextmanager
def _recorded_calls(module: nn.Module, calls: list[Call], *, with_hidden: bool = True) -> Iterator[None]:
    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs) if with_hidden else _with_hidden((args, kwargs), None))

    hook = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _recorded_projections(handle: LayerHandle) -> Iterator[list[Tensor]]:
    """Yield a list that gets the input of the projections, the joined heads, and the output."""
    seen: list[Tensor] = []
    hooks = [
        handle.q_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0])),
        handle.o_proj.register_forward_hook(lambda _, args, out: seen.extend((args[0], out))),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _hidden(call: Call) -> Tensor:
    args, kwargs = call
    return cast(Tensor, args[0] if args else kwargs["hidden_states"])


def _with_hidden(call: Call, hidden: Tensor | None) -> Call:
    args, kwargs = call
    if args:
        return (hidden, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": hidden}
