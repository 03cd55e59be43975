"""One model at work for several clients, one request at a time.

A model's gates hold for whoever runs it, so all that runs one model runs in one thread of its own: requests
wait for each other in the order in which they came, and nothing that one of them changes is there for the
next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from headwise.heads.head_ids import HeadId
from headwise.hub import Subject

T = TypeVar("T")


class AbandonedError(Exception):
    """Whoever asked is gone, so nobody needs the answer."""


class BusyError(Exception):
    """Too many requests wait already."""


class Worker:
    """A model and the thread in which it runs."""

    def __init__(
        self, subject: Subject, *, most: int = 16, heads: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """most: requests at once, the running one included.

        heads: by layer, the numbers that its heads had before others were removed, by which they go here.
        """
        self.subject = subject
        self.heads = heads
        self.name = subject.name
        self.most = most
        self.waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"headwise {subject.name}")
        self._running: set[threading.Event] = set()
        self._closed = False

    async def run(self, job: Callable[[], T], stop: threading.Event) -> T:
        """Return what a job gives, once those before it are done.

        stop: ends the job before the model's next layer, or before it begins.

        Raises BusyError where too many wait, AbandonedError after a stop, and what the job raises.
        """
        if self.waiting >= self.most:
            raise BusyError(f"{self.name} is busy with {self.waiting} requests; try again in a while")
        self.waiting += 1
        self._running.add(stop)
        if self._closed:
            stop.set()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, job, stop)
        finally:
            self.waiting -= 1
            self._running.discard(stop)

    def _do(self, job: Callable[[], T], stop: threading.Event) -> T:
        with self._stoppable(stop), torch.no_grad():
            return job()

    @contextmanager
    def _stoppable(self, stop: threading.Event) -> Iterator[None]:
        def check(*_: object) -> None:
            if stop.is_set():
                raise AbandonedError

        check()
        handles = [layer.module.register_forward_pre_hook(check) for layer in self.subject.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def places(self, heads: Sequence[HeadId]) -> list[HeadId]:
        """Return heads that are named by their numbers by where they now are in their layer.

        Raises ValueError for a head that is not there, or no longer.
        """
        if self.heads is None:
            return list(heads)
        found = []
        for layer, head in heads:
            left = list(self.heads.get(layer, ()))
            if head not in left:
                raise ValueError(f"there is no head {head} in layer {layer} of {self.name}: it has {left}")
            found.append((layer, left.index(head)))
        return found

    def close(self) -> None:
        """Stop what runs and refuse what comes."""
        self._closed = True
        for stop in list(self._running):
            stop.set()
