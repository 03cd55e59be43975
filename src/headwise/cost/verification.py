"""The formulas against the real thing: a model is built at a size that fits, run, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headwise.attention import MultiHeadAttention
from headwise.cost import flops, training
from headwise.cost.cache import kv_cache_bytes, score_tensor_bytes
from headwise.cost.measure import AllocatedBytes, kept_for_backward
from headwise.cost.numbers import say_bytes, whole
from headwise.cost.own import from_config
from headwise.cost.parameters import parameters
from headwise.cost.workload import Workload
from headwise.model import GPT, GPTConfig

MEMORY = 256 * 2**20
"""Bytes that a training step of the model built may need, unless more are allowed."""

KEPT_TOLERANCE = 0.02
"""What is kept is the same to the byte but for small masks, whose number is attention's own affair."""

PEAK_TOLERANCE = 0.1
"""The peak depends on the order in which PyTorch frees tensors, so it is predicted within this share."""


@dataclass(frozen=True)
class Check:
    """One cost, predicted and measured.

    Attributes:
        cost: its name, as in `Cost` where it stands there too.
        predicted, measured: bytes or counts.
        tolerance: largest share by which they may differ; 0: they must be equal.
        how: how it was measured.
    """

    cost: str
    predicted: int
    measured: int
    tolerance: float
    how: str

    @property
    def agrees(self) -> bool:
        """Whether prediction and measurement are as close as they must be."""
        return abs(self.predicted - self.measured) <= self.tolerance * self.measured

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "agrees": self.agrees}


def size_that_fits(
    config: GPTConfig, workload: Workload, memory_bytes: int = MEMORY
) -> tuple[GPTConfig, Workload]:
    """Return the configuration and workload, in fp32, cut down until a step needs at most `memory_bytes`.

    Cut, in this order: layers to 2, length to 128 and batch to 2, then vocabulary, length, and width with its
    heads by halves. The kind of every part, H / G and K stay.

    Raises:
        ValueError: not even the smallest of that kind fits.
    """
    whole("memory_bytes", memory_bytes)

    def fits() -> bool:
        architecture = from_config(config)
        return training.step_peak(architecture, workload, tiled=False) <= memory_bytes

    def cut(length: int, **changes: Any) -> tuple[GPTConfig, Workload]:
        smaller = config.model_dump() | changes | {"block_size": length}
        return GPTConfig(**smaller), workload.with_(length=length)

    length = min(workload.length, config.block_size)
    workload = Workload(workload.batch, length, "fp32")
    config, workload = cut(length)
    if fits():
        return config, workload
    workload = workload.with_(batch=min(workload.batch, 2))
    config, workload = cut(min(length, 128), n_layer=min(config.n_layer, 2))
    while not fits():
        if config.vocab_size > 512:
            config, workload = cut(workload.length, vocab_size=max(512, config.vocab_size // 8))
        elif config.kv_heads % 2 == 0 and config.d_model % 2 == 0:
            halves = {"n_head": config.n_head // 2, "n_kv_head": config.kv_heads // 2}
            halves |= {"d_model": config.d_model // 2, "d_head": config.head_width}
            if config.d_ff is not None:
                halves["d_ff"] = max(1, config.d_ff // 2)
            config, workload = cut(workload.length, **halves)
        elif config.d_model > 2 * config.head_width and config.output_projection == "learned":
            narrower: dict[str, int] = {"d_model": config.d_model // 2, "d_head": config.head_width}
            if config.d_ff is not None:
                narrower["d_ff"] = max(1, config.d_ff // 2)
            config, workload = cut(workload.length, **narrower)
        elif workload.length > 16:
            config, workload = cut(workload.length // 2)
        else:
            need = training.step_peak(from_config(config), workload, tiled=False)
            raise ValueError(
                f"not even the smallest model of this kind fits {say_bytes(memory_bytes)}; "
                f"it needs {say_bytes(need)}"
            )
    return config, workload


def verify(config: GPTConfig, *, batch: int = 2, length: int | None = None) -> list[Check]:
    """Build a `GPT` on the CPU in float32, run it, and return every cost predicted beside measured.

    Dropout is switched off, as the formulas do not count its masks. See `size_that_fits` for large models.

    Args:
        length: tokens of each sequence, at least 16 so that every backend runs as it does on longer texts;
            default `block_size`.

    Raises:
        TypeError, ValueError: a batch or length that is not a whole number or out of range, or no layers.
    """
    length = config.block_size if length is None else length
    whole("batch", batch)
    whole("length", length, least=16)
    if length > config.block_size:
        raise ValueError(f"length={length} exceeds the model's block_size={config.block_size}")
    if config.n_layer == 0:
        raise ValueError("a model without layers has no attention to verify; give n_layer of at least 1")
    config = config.model_copy(update={"dropout": 0.0})
    architecture, workload = from_config(config), Workload(batch, length, "fp32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(config)
        ids, targets = torch.randint(config.vocab_size, (2, batch, length))
    checks = [
        Check("parameters", parameters(architecture), model.num_parameters(), 0.0, "counted in the model"),
        Check(
            "kv_cache_bytes",
            kv_cache_bytes(architecture, workload),
            model.new_cache(batch, length).nbytes,
            0.0,
            "nbytes of the cache, allocated",
        ),
    ]
    for kind, backend in (("explicit", "reference"), ("tiled", "sdpa")):
        _use_backend(model, backend)
        kept = _kept(model, ids, targets)
        tiled = kind == "tiled"
        if not tiled:
            attention = architecture.layers[0].attention
            checks.append(
                Check(
                    "score_tensor_bytes",
                    score_tensor_bytes(attention, workload),
                    _score_tensor(kept, (batch, config.n_head, length)),
                    0.0,
                    "one score-sized tensor that autograd keeps (saved-tensor hook)",
                )
            )
        checks.append(
            Check(
                f"activation_bytes_{kind}",
                training.activations(architecture, workload, tiled=tiled),
                sum(tensor.untyped_storage().nbytes() for tensor in kept),
                KEPT_TOLERANCE,
                "all that autograd keeps (saved-tensor hook)",
            )
        )
        checks.append(
            Check(
                f"training_peak_bytes_{kind}",
                training.step_peak(architecture, workload, tiled=tiled),
                _peak(model, ids, targets),
                PEAK_TOLERANCE,
                "every storage of a second AdamW step, from birth to death",
            )
        )
    _use_backend(model, "reference")
    forward, back = _flops(model, ids, targets)
    counter = "torch.utils.flop_counter, scores written out"
    checks.append(Check("flops_forward", flops.forward(architecture, workload), forward, 0.0, counter))
    checks.append(Check("flops_backward", flops.backward(architecture, workload), back, 0.0, counter))
    decoded = _decode_flops(model, ids)
    checks.append(Check("flops_decode_token", flops.decode(architecture, workload), decoded, 0.0, counter))
    return checks


def _use_backend(model: GPT, backend: str) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.backend = backend


def _loss(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    # the logits are held by no name, so that they die as soon as autograd lets go of them
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def _kept(model: GPT, ids: Tensor, targets: Tensor) -> Sequence[Tensor]:
    with kept_for_backward(model.parameters()) as kept:
        _loss(model, ids, targets)
    return list(kept.values())


def _score_tensor(kept: Sequence[Tensor], sizes: tuple[int, int, int]) -> int:
    """Bytes of a float tensor that ends in T keys and holds B·H·T·T numbers; raises if none was kept."""
    batch, heads, length = sizes
    for tensor in kept:
        square = tensor.ndim > 2 and tensor.shape[-1] == length
        if square and tensor.is_floating_point() and tensor.numel() == batch * heads * length * length:
            return int(tensor.untyped_storage().nbytes())
    raise RuntimeError("written-out attention kept no tensor of B·H·T·T scores")


def _peak(model: GPT, ids: Tensor, targets: Tensor) -> int:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    _step(model, optimizer, ids, targets)  # the first step makes the moments
    optimizer.zero_grad()
    moments = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    with AllocatedBytes() as allocated:
        allocated.follow([*model.parameters(), *moments, ids, targets])
        _step(model, optimizer, ids, targets)
    optimizer.zero_grad()
    return int(allocated.peak)


def _step(model: GPT, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    _loss(model, ids, targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _flops(model: GPT, ids: Tensor, targets: Tensor) -> tuple[int, int]:
    """FLOPs of the forward and of the backward pass."""
    with FlopCounterMode(display=False) as counter:
        loss = _loss(model, ids, targets)
        forward = int(counter.get_total_flops())
        loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return forward, int(counter.get_total_flops()) - forward


@torch.no_grad()
def _decode_flops(model: GPT, ids: Tensor) -> int:
    """FLOPs of the last token of one sequence, given the others in a cache."""
    cache = model.new_cache(1, ids.shape[1])
    model(ids[:1, :-1], cache=cache)
    with FlopCounterMode(display=False) as counter:
        model(ids[:1, -1:], cache=cache)
    return int(counter.get_total_flops())
