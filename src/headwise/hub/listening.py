"""Listening to layers of attention while a model runs: what they are given, and what goes on from them.

Both kinds of model ask someone else to attend: `MultiHeadAttention` its `attend`, a model of transformers
the function that `AttentionInterface.get_interface` returns. For as long as somebody listens, these pass what
they see to the listeners; the function that attends, the mask and the model's configuration stay what they
were, so that what is looked at is what would have run.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, K head width of q and k, V that of v.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.attention import CrossCache, MultiHeadAttention
from headwise.hub.library import attention_interface


@dataclass(frozen=True, eq=False)
class Heard:
    """What a layer was given, in the words of its model, and what its heads gave."""

    module: nn.Module
    q: Tensor
    """(B, H, T, K)."""
    k: Tensor
    """(B, G, S, K)."""
    v: Tensor
    """(B, G, S, V)."""
    out: Tensor
    """(B, H, T, V), before any gate."""
    implementation: str | None
    """The name of the attention function of transformers, None for ours."""
    options: dict[str, Any]
    """The other arguments."""


Listener = Callable[[Heard, Tensor], Tensor]
"""Given what was heard and the heads' outputs so far (B, H, T, V), returns the outputs that go on."""

_lock = threading.Lock()
_listeners: dict[nn.Module, list[Listener]] = {}
"""In the order in which they came."""
_installed: dict[str, Any] = {}


@contextmanager
def listening(modules: Sequence[nn.Module], listener: Listener) -> Iterator[None]:
    """While the context lasts, call the listener whenever one of the modules attends.

    Several listeners see the same `Heard`; each changes the outputs that those before it left. They may leave
    in any order.
    """
    wanted = list(dict.fromkeys(modules))
    with ExitStack() as stack:
        for module in wanted:
            stack.enter_context(_listener_of(module, listener))
        yield


@contextmanager
def _listener_of(module: nn.Module, listener: Listener) -> Iterator[None]:
    with _lock:
        first = module not in _listeners
        _listeners.setdefault(module, []).append(listener)
        if first:
            _connect(module)
    try:
        yield
    finally:
        with _lock:
            # the last of equal listeners, so that those who came before keep their place
            places = [i for i, other in enumerate(_listeners[module]) if other is listener]
            del _listeners[module][places[-1]]
            if not _listeners[module]:
                del _listeners[module]
                _disconnect(module)


def _tell(heard: Heard) -> Tensor:
    out = heard.out
    for listener in tuple(_listeners.get(heard.module, ())):
        out = listener(heard, out)
    return out


_OURS = "ours: "
_THEIRS = "transformers"


def _connect(module: nn.Module) -> None:
    if isinstance(module, MultiHeadAttention):
        _installed[f"{_OURS}{id(module)}"] = _connect_own(module)
    elif _THEIRS not in _installed:
        _installed[_THEIRS] = _connect_interface()


def _disconnect(module: nn.Module) -> None:
    if isinstance(module, MultiHeadAttention):
        _installed.pop(f"{_OURS}{id(module)}")()
    elif all(isinstance(other, MultiHeadAttention) for other in _listeners):
        _installed.pop(_THEIRS)()


def _connect_own(module: MultiHeadAttention) -> Callable[[], None]:
    """Wrap what the module attends with; returns what undoes it."""
    before = module.attend
    cross: list[bool] = []

    def remember(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        context = args[1] if len(args) > 1 else options.get("context")
        cross[:] = [context is not None or isinstance(options.get("cache"), CrossCache)]

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        gate = options.pop("gate", None)
        result = before(q, k, v, gate=None, **options)
        out, *weights = result if isinstance(result, tuple) else (result,)
        crosses = cross[0] if cross else module.d_context != module.d_model
        changed = _tell(Heard(module, q, k, v, out, None, {**options, "cross": crosses}))
        changed = gated(changed, gate)  # the caller's own
        return (changed, *weights) if weights else changed

    handle = module.register_forward_pre_hook(remember, with_kwargs=True)
    module.attend = attend

    def undo() -> None:
        module.attend = before
        handle.remove()

    return undo


def _connect_interface() -> Callable[[], None]:
    """Wrap the functions that models of transformers are given; returns what undoes it."""
    interface = attention_interface()
    before = interface.get_interface

    def get_interface(self: Any, attn_implementation: str | None, default: Callable[..., Any]) -> Any:
        function = before(self, attn_implementation, default)
        return functools.partial(_overheard, function, attn_implementation or "eager")

    interface.get_interface = get_interface

    def undo() -> None:
        interface.get_interface = before

    return undo


def _overheard(
    function: Callable[..., Any],
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    result = function(module, query, key, value, attention_mask, *args, **options)
    if module not in _listeners:
        return result
    out, *rest = result
    heard = Heard(
        module,
        query,
        key,
        value,
        out.transpose(1, 2),  # (B, T, H, V) → (B, H, T, V)
        implementation,
        {**options, "attention_mask": attention_mask},
    )
    return (_tell(heard).transpose(1, 2), *rest)


def gated(out: Tensor, gate: Tensor | None, fill: Tensor | None = None) -> Tensor:
    """Return gate · out + (1 - gate) · fill for out (B, H, T, V), gate (H,) or (B, H)."""
    if gate is None:
        return out
    factor = gate.unsqueeze(-1).unsqueeze(-1)  # (H, 1, 1) or (B, H, 1, 1)
    kept = out * factor
    return (kept if fill is None else kept + (1 - factor) * fill).to(out.dtype)
