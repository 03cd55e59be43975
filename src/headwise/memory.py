"""Telling a lack of memory from other errors."""

from __future__ import annotations


def short_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch (whose CPU has no error of its own for it) ran out of memory."""
    told = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in told or "out of memory" in told)
    )
