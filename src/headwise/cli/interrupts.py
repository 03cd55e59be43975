"""Ctrl-C on the command line: one line that says how to go on, and exit code 130."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def interruptible(told: str = "") -> Iterator[None]:
    """End the program with 130 when Ctrl-C stops the block.

    `told` goes to stderr, `--quiet` or not, since it belongs to an error; by default what the interrupt
    itself says.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"headwise: {told or str(stop) or 'interrupted'}", err=True)
        raise typer.Exit(130) from None
