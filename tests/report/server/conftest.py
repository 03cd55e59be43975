"""Servers of small models, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from headwise.hub import Subject
from headwise.report.server import Address, Limits, Worker, make_app
from headwise.report.server.running import make_server


class Served:
    """A running server and a client of it."""

    def __init__(self, url: str, workers: list[Worker], client: httpx.Client) -> None:
        self.url, self.workers, self.client = url, workers, client

    def post(self, what: str, **asked: Any) -> httpx.Response:
        return self.client.post(f"/api/{what}", json={"model": self.workers[0].name, **asked})

    def error(self, what: str, **asked: Any) -> tuple[int, str]:
        """What is said of a request that cannot be answered: the status, and the one sentence of it."""
        answer = self.post(what, **asked)
        told = answer.json()
        assert list(told) == ["error"]
        assert "Traceback" not in told["error"]
        return answer.status_code, told["error"]


@contextmanager
def running(
    workers: list[Worker], text: str, limits: Limits | None = None, **options: Any
) -> Iterator[Served]:
    address = Address.open(options.pop("host", "127.0.0.1"), 0, **options)
    server = make_server(make_app(workers, text, limits), workers, address)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address.socket]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{address.port}"
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            yield Served(url, workers, client)
    finally:
        for worker in workers:
            worker.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def running_server() -> Callable[..., Any]:
    """`running`, for fixtures of a wider scope than a test."""
    return running


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """Start servers; they end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running(*args, **options))


@pytest.fixture(scope="module")
def served(subject: Subject) -> Iterator[Served]:
    """One server for the tests that change nothing."""
    with running([Worker(subject)], "abc abc", Limits(tokens=100, new_tokens=50)) as found:
        yield found
