"""Silencing heads without running again what stands before them.

One forward pass is recorded: what each block gave, what its attention gave, what each head gave. To silence
heads of a layer, the blocks before it hand out what they gave, its attention hands out what it gave less the
heads' shares, and only what follows is computed, for several heads of the layer at once.

Letters: B texts, T tokens, H query heads, V width of a value, D width of the layer's output, n heads that are
silenced at once, each in a copy of the batch of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.heads.seam import AttentionCall, gated, observe
from headwise.hub import AttentionLayer, Subject, TokenBatch

MEMORY, MEMORY_ON_A_GPU = 2**29, 2**32
"""How many bytes a replay holds at once, if nothing else is asked for."""

WIDEST = 2**22
"""Bytes of the widest activation on a CPU: more does not stay in the second-level cache of usual ones."""

Shortcut = Literal["attention", "projection"]
"""Which module hands out the output of a layer's heads: its attention, or the projection that follows it."""


@dataclass(frozen=True, eq=False)
class Replayer:
    """Runs a model under study so that heads can be silenced at the least cost."""

    subject: Subject
    memory: int | None = None
    """Bytes of activations and outputs to hold at once, roughly; None for what suits the device."""

    def record(
        self,
        batch: TokenBatch,
        *,
        silenced: Mapping[int, Collection[int]] | None = None,
        fills: Mapping[int, Tensor] | None = None,
    ) -> Recording:
        """Run a batch and keep what a replay needs.

        silenced: by a layer's index, heads to be silent in this run and in every replay of it.
        fills: by a layer's index, what takes the place of a silent head's output; broadcastable to
            (B, H, T, V), 0 where missing.
        """
        model, layers = self.subject.model, self.subject.layers
        record = _Record()
        watched = dict(part for layer in layers for part in _parts(model, layer))
        gates = {index: _gate(layers[index], heads) for index, heads in (silenced or {}).items() if heads}
        fills = dict(fills or {})
        with ExitStack() as stack:
            for module, before in watched.items():
                stack.enter_context(_running(module, record.noting(module, before)))
            stack.enter_context(torch.no_grad())
            shut = {index: fill for index, fill in fills.items() if index in gates}
            stack.enter_context(observe(model, record.look, gates=gates, fills=shut))
            output = self.subject.run(batch)
        return Recording(self, batch, output, gates, fills, record)


@dataclass(eq=False)
class _Record:
    """What modules gave while they ran, call by call."""

    gave: dict[nn.Module, list[Any]] = field(default_factory=dict)
    """In the order in which they came to an end for the first time."""
    given: dict[nn.Module, Any] = field(default_factory=dict)
    """The first thing that each was given."""
    heads: dict[int, Tensor] = field(default_factory=dict)
    """What the heads of each layer gave, (B, H, T, V), before gates, by the layer's index."""
    calls: list[int] = field(default_factory=list)

    def noting(self, module: nn.Module, before: nn.Module | None) -> Callable[..., Any]:
        """Return the module's forward so that what it gives is kept, as it is before hooks.

        before: a module after whose end nothing needs to be kept, only that there was a call.
        """
        forward = module.forward

        def noted(*args: Any, **options: Any) -> Any:
            output = forward(*args, **options)
            self.given[module] = args[0] if args else None
            # a copy, because a model may go on to write into what its module gave
            kept = None if before in self.gave else _map(torch.clone, output)
            self.gave.setdefault(module, []).append(kept)
            return output

        return noted

    def look(self, call: AttentionCall) -> None:
        self.heads[call.layer.index] = call.out
        self.calls.append(call.layer.index)

    def ran_once(self, module: nn.Module) -> bool:
        return len(self.gave.get(module, ())) == 1


@dataclass(frozen=True, eq=False)
class Recording:
    """One run of a batch, from which heads can be silenced."""

    replayer: Replayer
    batch: TokenBatch
    output: Tensor
    """(B, T, ·), what the model gave."""
    gates: Mapping[int, Tensor]
    """(H,) by layer, 0 for the heads that are silent in this run."""
    fills: Mapping[int, Tensor]
    record: _Record

    @cached_property
    def _in_order(self) -> bool:
        """Whether each layer ran once, one after the other, so that what they gave can be handed out."""
        model, layers = self.replayer.subject.model, self.replayer.subject.layers
        return self.record.calls == [layer.index for layer in layers if layer.n_head] and all(
            self.record.ran_once(module)
            for layer in layers
            for module in (block_of(model, layer), layer.module)
        )

    def silence(self, layer: AttentionLayer, heads: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """Silence each of the heads of a layer alone, beside those that are silent in the run.

        Yields each head with what the model gives, (B, T, ·).
        """
        chunks = -(-len(heads) // self._at_once())
        size = -(-len(heads) // max(1, chunks))  # of one size, as far as possible
        for start in range(0, len(heads), size):
            some = list(heads[start : start + size])
            yield from zip(some, self._silenced(layer, some), strict=True)

    def _at_once(self) -> int:
        """How many copies of the batch to run at once."""
        tokens = self.batch.ids.numel()
        on_cpu = self.output.device.type == "cpu"
        # feed-forward parts are four times as wide as the stream
        width = max(out.shape[1] * out.shape[3] for out in self.record.heads.values())
        widest = 4 * width * self.output.element_size()
        memory = self.replayer.memory or (MEMORY if on_cpu else MEMORY_ON_A_GPU)
        fits = memory // (tokens * (4 * widest + 8 * self.output.shape[-1]))
        if on_cpu:
            fits = min(fits, WIDEST // (tokens * widest))
        return max(1, fits)

    def _silenced(self, layer: AttentionLayer, heads: list[int]) -> Iterator[Tensor]:
        count = len(heads)
        tiled = TokenBatch(
            ids=_tile(self.batch.ids, count),
            real=_tile(self.batch.real, count),
            special=_tile(self.batch.special, count),
            punctuation=_tile(self.batch.punctuation, count),
        )
        shortcut = self._shortcuts[layer.index]
        model = self.replayer.subject.model
        gates = {index: gate for index, gate in self.gates.items() if index > layer.index}
        if shortcut is None:
            gates = dict(self.gates)
            gates[layer.index] = self._alone(layer, heads)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if gates:
                stack.enter_context(observe(model, gates=gates, fills=self._tiled_fills(gates, count)))
            for module, answer in self._answers(layer, heads, shortcut).items():
                stack.enter_context(_running(module, lambda *_, answer=answer, **__: answer()))
            output = self.replayer.subject.run(tiled)
        yield from output.view(count, -1, *output.shape[1:])  # (n, B, T, ·)

    def _alone(self, layer: AttentionLayer, heads: list[int]) -> Tensor:
        """Return gates (n·B, H), each copy of the batch without one of the heads."""
        gate = self.gates.get(layer.index)
        gate = _gate(layer, ()) if gate is None else gate
        rows = gate.repeat(len(heads), 1)  # (n, H)
        rows[range(len(heads)), heads] = 0.0
        return rows.repeat_interleave(self.batch.ids.shape[0], dim=0)

    def _tiled_fills(self, gates: Collection[int], count: int) -> dict[int, Tensor]:
        return {
            index: fill if fill.ndim < 4 or fill.shape[0] == 1 else _tile(fill, count)
            for index, fill in self.fills.items()
            if index in gates
        }

    def _answers(
        self, layer: AttentionLayer, heads: list[int], shortcut: Shortcut | None
    ) -> dict[nn.Module, Callable[[], Any]]:
        """Return by module what it hands out instead of running."""
        if not self._in_order:
            return {}
        model, layers = self.replayer.subject.model, self.replayer.subject.layers
        unfinished = {block_of(model, other) for other in layers[layer.index :]}
        done = []
        for other in layers[: layer.index]:
            block = block_of(model, other)
            done.append(other.module if block in unfinished else block)
        answers = {module: self._as_before(module, len(heads)) for module in [*done, *self._before(layer)]}
        if done:  # what the first block that runs is given, and may write into
            last = answers[done[-1]]
            answers[done[-1]] = lambda: _map(Tensor.contiguous, last())
        if shortcut is not None:
            changed = self._changed(layer, heads)
            if shortcut == "attention":
                gave = self._as_before(layer.module, len(heads))
                answers[layer.module] = lambda: _with_first(gave(), changed)
            else:
                answers[layer.module] = self._as_before(layer.module, len(heads))
                answers[_projection(layer)] = lambda: changed
        return answers

    def _before(self, layer: AttentionLayer) -> Iterator[nn.Module]:
        """Return the modules of the layer's block that ended before its attention, such as a norm."""
        children = set(block_of(self.replayer.subject.model, layer).children())
        for module in self.record.gave:
            if module is layer.module:
                return
            if module in children and self.record.ran_once(module):
                yield module

    def _as_before(self, module: nn.Module, count: int) -> Callable[[], Any]:
        gave = self.record.gave[module][0]
        size = self.batch.ids.shape[0]
        return lambda: _map(lambda t: _tile(t, count) if t.ndim and t.shape[0] == size else t, gave)

    @cached_property
    def _shortcuts(self) -> list[Shortcut | None]:
        return [self._shortcut(layer) for layer in self.replayer.subject.layers]

    def _shortcut(self, layer: AttentionLayer) -> Shortcut | None:
        """Return how the layer's output can be had from what was recorded; None if it must run again.

        It can where the projection was given the heads' outputs side by side and nothing more, and where
        either the attention gave just what the projection gave, or the projection comes after it.
        """
        record = self.record
        if not (layer.n_head and self._in_order and record.ran_once(layer.o_proj)):
            return None
        heads, joined = record.heads[layer.index], record.given[layer.o_proj]
        if layer.output_weight is None and not isinstance(layer.o_proj, nn.Identity):
            return None
        if not isinstance(joined, Tensor) or joined.numel() != heads.numel():
            return None
        out = gated(heads, self.gates.get(layer.index), self.fills.get(layer.index))
        if not torch.equal(out.transpose(1, 2).reshape(joined.shape), joined):
            return None
        gave, projected = _first(record.gave[layer.module][0]), record.gave[layer.o_proj][0]
        if any(module is layer.o_proj for module in layer.module.modules()):
            same = isinstance(gave, Tensor) and gave.shape == projected.shape
            return "attention" if same and torch.equal(gave, projected) else None
        return "projection"

    def _changed(self, layer: AttentionLayer, heads: list[int]) -> Tensor:
        """Return what the projection gives without each of the heads, (n·B, T, D).

        That is what it gave, less z_h W_O^h and plus the fill's share: the bias stays.
        """
        out, weight = self.record.heads[layer.index], layer.output_weight
        fill = self.fills.get(layer.index)
        lost = out if fill is None else out - fill.to(out.dtype)  # (B, H, T, V)
        lost = lost[:, heads].transpose(0, 1)  # (n, B, T, V)
        gave: Tensor = self.record.gave[_projection(layer)][0]
        width = out.shape[3]
        if weight is None:
            changed = gave.repeat(len(heads), 1, 1, 1)  # (n, B, T, H·V)
            for copied, head, share in zip(changed, heads, lost, strict=True):
                copied[..., head * width : (head + 1) * width] -= share
        else:
            by_head = weight.view(len(weight), -1, width)[:, heads]  # (D, n, V)
            shares = lost.flatten(1, 2) @ by_head.permute(1, 2, 0)  # (n, B·T, D)
            changed = gave - shares.view(len(heads), *gave.shape)
        return changed.flatten(0, 1)


def _parts(model: nn.Module, layer: AttentionLayer) -> Iterator[tuple[nn.Module, nn.Module | None]]:
    """Return the modules of a layer whose outputs a replay may hand out, and before which end of another."""
    block = block_of(model, layer)
    if block is not layer.module:
        yield from ((child, layer.module) for child in block.children())
    yield from ((block, None), (layer.module, None))
    if layer.o_proj is not None:
        yield layer.o_proj, None


def block_of(model: nn.Module, layer: AttentionLayer) -> nn.Module:
    """Return the block of a model that holds a layer: the child of its outermost list of modules.

    The attention itself where it is in no list.
    """
    names = layer.name.split(".")
    for depth in range(len(names) - 1):
        if isinstance(model.get_submodule(".".join(names[:depth])), nn.ModuleList):
            return model.get_submodule(".".join(names[: depth + 1]))
    return layer.module


def _projection(layer: AttentionLayer) -> nn.Module:
    if layer.o_proj is None:
        raise ValueError(f"layer {layer.name} has no output projection of its own")
    return layer.o_proj


def _gate(layer: AttentionLayer, silent: Collection[int]) -> Tensor:
    """Return gates (H,), 0 for the silent heads."""
    like = next(layer.module.parameters(), torch.empty(()))
    gate = torch.ones(layer.n_head, dtype=like.dtype, device=like.device)
    gate[list(silent)] = 0.0
    return gate


@contextmanager
def _running(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While the context lasts, the module runs another forward; its hooks stay."""
    own = "forward" in vars(module)
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if own:
            vars(module)["forward"] = before
        else:
            del vars(module)["forward"]


def _tile(t: Tensor, count: int) -> Tensor:
    """Return copies one after the other along the first axis, (B, …) → (n·B, …)."""
    if t.shape[0] == 1:
        return t.expand(count, *t.shape[1:])  # without copying
    return t.repeat(count, *[1] * (t.ndim - 1))


def _map(change: Callable[[Tensor], Tensor], output: Any) -> Any:
    """Return what a module gave with its tensors changed, in tuples, lists and dictionaries too."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple):
        parts = [_map(change, part) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else tuple(parts)
    if isinstance(output, list):
        return [_map(change, part) for part in output]
    if isinstance(output, Mapping):
        changed: Any = copy.copy(output)
        for key, part in output.items():
            changed[key] = _map(change, part)
        return changed
    return output


def _first(output: Any) -> Any:
    """Return the first thing that a module gave."""
    if isinstance(output, Mapping):
        return next(iter(output.values()), None)
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _with_first(output: Any, first: Tensor) -> Any:
    """Return what a module gave with another first thing."""
    if isinstance(output, (tuple, list)):
        return type(output)([first, *output[1:]])
    if isinstance(output, Mapping):
        changed: Any = copy.copy(output)
        changed[next(iter(output))] = first
        return changed
    return first
