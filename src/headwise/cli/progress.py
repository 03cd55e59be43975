"""A training seen from the terminal: a bar with the time left, or plain lines where nobody looks."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headwise.training.metrics import tokens_per_second
from headwise.training.observer import Observer, Start, Step, Validation


def observer_for(quiet: bool) -> Observer:
    """A bar on a terminal, lines elsewhere, nothing when quiet; all on stderr."""
    console = Console(stderr=True)
    if quiet:
        return Observer()
    return Bar(console) if console.is_terminal else Lines(console)


class Lines(Observer):
    """A line at every evaluation, and in between when the last one is ten seconds old."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.max_steps = 0
        self.last = (0.0, 0)  # time and tokens at the last line

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(escape(text), soft_wrap=True, highlight=False)

    def on_run(self, variant: str, seed: int, number: int, total: int) -> None:
        self.say(f"run {number} of {total}: {variant}, seed {seed}")

    def on_start(self, start: Start) -> None:
        self.max_steps = start.max_steps
        self.last = (time.perf_counter(), start.step * start.tokens_per_step)
        validation = f"{start.validation_tokens:,} held out" if start.validation_tokens else "none held out"
        where = f" from step {start.step}" if start.step else ""
        self.say(
            f"{start.parameters:,} parameters on {start.device}; {start.train_tokens:,} tokens of text, "
            f"{validation}; {start.max_steps:,} steps of {start.tokens_per_step:,} tokens{where}; "
            f"{start.folder}"
        )

    def on_step(self, step: Step) -> None:
        seconds = time.perf_counter() - self.last[0]
        if seconds >= 10:
            speed = tokens_per_second(step.tokens - self.last[1], seconds)
            self.say(f"step {step.step}/{self.max_steps}: loss {step.loss:.3f}, {speed:,.0f} tokens/s")
            self.last = (time.perf_counter(), step.tokens)

    def on_validation(self, validation: Validation) -> None:
        train = f", training loss {validation.train_loss:.3f}" if validation.train_loss is not None else ""
        best = " (best so far)" if validation.best else ""
        self.say(f"step {validation.step}: validation loss {validation.loss:.3f}{train}{best}")

    def on_message(self, text: str) -> None:
        self.say(text)


class Bar(Lines):
    """One bar for a run, with losses, speed and the time left."""

    def on_start(self, start: Start) -> None:
        super().on_start(start)
        self.progress = Progress(
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f} "),
            TimeRemainingColumn(),
            TextColumn("left  {task.fields[state]}"),
            console=self.console,
        )
        self.task = self.progress.add_task("training", total=start.max_steps, completed=start.step, state="")
        self.validation = ""
        self.progress.start()

    def on_step(self, step: Step) -> None:
        speed = f", {step.tokens_per_second:,.0f} tokens/s" if step.tokens_per_second else ""
        state = f"loss {step.loss:.3f}{self.validation}{speed}"
        self.progress.update(self.task, completed=step.step, state=state)

    def on_validation(self, validation: Validation) -> None:
        self.validation = f", validation {validation.loss:.3f}"

    def on_end(self) -> None:
        self.progress.stop()
