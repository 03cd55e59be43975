"""Multi-head attention as six NumPy functions, each returning arrays that can be printed.

Nothing here needs torch; read it before the fused form in `multi_head`. Letters: `T` words, `D` numbers a
word, `H` heads, `K = D / H` numbers a head. The formulas are those of Vaswani et al. (2017), section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.attention.counts import counts_that_fit

Array = NDArray[np.float64]


class Inputs(NamedTuple):
    """What a walk starts from: one row per word, and the four learned matrices."""

    x: Array  # (T, D)
    w_q: Array  # (D, D)
    w_k: Array  # (D, D)
    w_v: Array  # (D, D)
    w_o: Array  # (D, D)

    @property
    def parameters(self) -> int:
        """How many numbers training would learn: all but `x`."""
        return sum(w.size for w in self[1:])


@dataclass(frozen=True)
class Walk:
    """Every array of one walk, in the order in which the steps make them."""

    x: Array  # (T, D)
    # project
    q: Array  # (T, D)
    k: Array  # (T, D)
    v: Array  # (T, D)
    # split
    q_heads: Array  # (H, T, K)
    k_heads: Array  # (H, T, K)
    v_heads: Array  # (H, T, K)
    # score
    scores: Array  # (H, T, T); -inf where a causal walk hides the key
    # weigh
    weights: Array  # (H, T, T); every row sums to 1
    head_outputs: Array  # (H, T, K)
    # join
    joined: Array  # (T, D)
    # mix
    output: Array  # (T, D)

    def arrays(self) -> dict[str, Array]:
        """The arrays by name, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def random_inputs(length: int, d_model: int, seed: int = 1) -> Inputs:
    """Draw `x`, then `w_q, w_k, w_v, w_o`, from `numpy.random.RandomState(seed)`.

    `x` has deviation 1 and the matrices 0.5; the same seed gives the same numbers on every machine.

    Raises:
        ValueError: a size below 1, or a seed outside 0 … 2³² - 1.
    """
    for name, size in (("length", length), ("d_model", d_model)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie in 0 … {2**32 - 1}, got {seed}")
    random = np.random.RandomState(seed)
    x = random.randn(length, d_model)
    return Inputs(x, *(0.5 * random.randn(d_model, d_model) for _ in range(4)))


def project(x: Array, w: Array) -> Array:
    """Every word times one learned matrix: `x (T, D)`, `w (D, D)` → `(T, D)`."""
    return x @ w


def split(m: Array, n_head: int) -> Array:
    """Cut every row into one piece per head: `(T, D)` → `(H, T, K)`.

    Raises:
        ValueError: `n_head` does not divide D.
    """
    length, d_model = m.shape
    if n_head < 1:
        raise ValueError(f"n_head must be at least 1, got {n_head}")
    if d_model % n_head:
        raise ValueError(
            f"d_model={d_model} cannot be divided among n_head={n_head} heads; "
            f"head counts that fit: {counts_that_fit(d_model, n_head)}"
        )
    pieces = m.reshape(length, n_head, d_model // n_head)  # (T, H, K)
    return pieces.transpose(1, 0, 2)  # (H, T, K)


def score(q_heads: Array, k_heads: Array, *, causal: bool = False) -> Array:
    """How well each query matches each key: `q kᵀ / √K`, `(H, T, K)` twice → `(H, T, T)`.

    With `causal`, keys after the query score -inf, so that `weigh` gives them exactly 0.
    """
    scores: Array = q_heads @ k_heads.transpose(0, 2, 1) / np.sqrt(q_heads.shape[-1])
    if causal:
        scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    return scores


def weigh(scores: Array, v_heads: Array) -> tuple[Array, Array]:
    """Softmax over the keys, then the weighted mean of the values.

    `scores (H, T, T)`, `v_heads (H, T, K)` → weights `(H, T, T)` and head outputs `(H, T, K)`.
    """
    # Softmax does not change when a row is shifted; shifting by its maximum keeps exp from overflowing.
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights, weights @ v_heads


def join(head_outputs: Array) -> Array:
    """Put the heads' pieces side by side again: `(H, T, K)` → `(T, D)`; the inverse of `split`."""
    n_head, length, d_head = head_outputs.shape
    return head_outputs.transpose(1, 0, 2).reshape(length, n_head * d_head)  # (T, H, K) → (T, D)


def mix(joined: Array, w_o: Array) -> Array:
    """The output projection, the only step in which heads meet: `(T, D)`, `(D, D)` → `(T, D)`."""
    return joined @ w_o


def walk(inputs: Inputs, n_head: int, *, causal: bool = False) -> Walk:
    """Run all six steps and keep every array.

    Raises:
        ValueError: `n_head` does not divide D.
    """
    q, k, v = (project(inputs.x, w) for w in (inputs.w_q, inputs.w_k, inputs.w_v))
    q_heads, k_heads, v_heads = (split(m, n_head) for m in (q, k, v))
    scores = score(q_heads, k_heads, causal=causal)
    weights, head_outputs = weigh(scores, v_heads)
    joined = join(head_outputs)
    output = mix(joined, inputs.w_o)
    return Walk(inputs.x, q, k, v, q_heads, k_heads, v_heads, scores, weights, head_outputs, joined, output)
