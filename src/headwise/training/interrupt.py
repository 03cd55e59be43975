"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run after it was saved."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"stopped after step {step}; {folder} is saved and --resume goes on from there")


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back: the first is only noted, and the yielded function tells of it; a second one raises
    KeyboardInterrupt at once.

    Outside the main thread, or where Ctrl-C is ignored (`nohup`), nothing is changed.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield lambda: False
        return
    noted = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt("stopped at once; --resume goes on from the last checkpoint")
        noted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, before)
