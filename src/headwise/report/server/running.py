"""Listening on a port until Ctrl-C."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from headwise.report.server.guard import Guard, is_loopback
from headwise.report.server.worker import Worker

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,256}")


@dataclass(frozen=True)
class Address:
    """Where to listen, and who may ask."""

    host: str
    socket: socket.socket
    token: str | None
    names: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, host: str = "127.0.0.1", port: int = 0, *, token: str | None = None, names: Sequence[str] = ()
    ) -> Address:
        """Take a port, 0 for any free one.

        token: what requests have to give; made here where other machines can ask and none is given.
        names: other names than the host's by which it may be asked.

        Raises ValueError for a port or host that cannot be had and a token that is too simple.
        """
        if not 0 <= port <= 65535:
            raise ValueError(f"--port must be from 0 (any free one) to 65535, got {port}")
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError(
                "--token must be 8 to 256 letters, digits and . _ ~ -, so that it fits an address"
            )
        try:
            family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            taken = socket.create_server(where[:2], family=family)
        except OSError as error:
            told = error.strerror or str(error)
            raise ValueError(
                f"cannot listen on port {port} of {host} ({told}); give another --port, or --port 0 for one "
                "that is free"
            ) from error
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        return cls(host, taken, token, tuple(names))

    @property
    def port(self) -> int:
        found: int = self.socket.getsockname()[1]
        return found

    @property
    def url(self) -> str:
        """Where the page is, with the token."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def make_server(app: Any, workers: Sequence[Worker], address: Address) -> Any:
    """Return a uvicorn server of an application behind its `Guard`; its `run` takes the address's socket."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            for worker in workers:  # so that no answer is waited for
                worker.close()
            super().handle_exit(sig, frame)

    guard = Guard(app, host=address.host, token=address.token, names=address.names, port=address.port)
    config = uvicorn.Config(
        guard,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        ws="none",
    )
    return Server(config)


def serve(app: Any, workers: Sequence[Worker], address: Address, ready: Callable[[str], None]) -> None:
    """Answer until Ctrl-C, which is raised as KeyboardInterrupt once everything is closed.

    ready: called with the page's address just before the first answer.
    """
    server = make_server(app, workers, address)
    ready(address.url)
    try:
        server.run(sockets=[address.socket])
    finally:
        for worker in workers:
            worker.close()
        address.socket.close()
