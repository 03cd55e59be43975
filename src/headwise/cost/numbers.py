"""Whole numbers in, bytes out: checking what a user gives, and saying bytes so that nobody mistakes them."""

from __future__ import annotations

from typing import Any

BITS = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits of one number by the name of its type."""

FLOATS = ("fp64", "fp32", "bf16", "fp16")
"""Types in which weights and activations can be kept; the others are for caches."""

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


MOST_LAYERS = 10_000
"""Far more than any model has; layers are counted one by one, which would have no end for absurd numbers."""


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is a whole number of at least `least`, and at most `most`.

    Raises TypeError for anything but an int, ValueError for one outside; both name the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value:,}")
    return value


def packed(count: int, dtype: str) -> int:
    """Bytes of a vector of `count` numbers, the last byte filled up."""
    return -(-count * BITS[dtype] // 8)


def check_dtype(name: str, dtype: str, known: tuple[str, ...] = tuple(BITS)) -> str:
    """Return `dtype` if it is one of `known`; raises ValueError that lists them."""
    if dtype not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {dtype!r}")
    return dtype


def read_bytes(name: str, text: str) -> int:
    """Read a size such as "24GiB", "512 MiB" or "1000000" (bytes).

    Raises ValueError for anything else; GB and MB too, as they are read as powers of 1000 by some and of 1024
    by others.
    """
    number, factor = text.strip(), 1
    for unit, size in UNITS.items():
        if number.lower().endswith(unit.lower()):
            number, factor = number[: -len(unit)].strip(), size
            break
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value * factor < float("inf"):
        raise ValueError(
            f"{name} must be a positive number of bytes or of {', '.join(UNITS)}, such as 24GiB, got {text!r}"
        )
    return int(value * factor)


def say_bytes(count: int) -> str:
    """`count` exactly, then in the largest binary unit that leaves at least 1: "4,194,304 bytes (4 MiB)"."""
    unit, size = max(
        ((unit, size) for unit, size in UNITS.items() if size <= count), key=lambda u: u[1], default=("", 1)
    )
    if not unit:
        return f"{count:,} bytes"
    return f"{count:,} bytes ({count / size:.4g} {unit})"
