"""Who may come in: checked before anything of a request is read.

A page of some other site can make a browser send requests to this machine. Of those, a name that only
resolves to it (DNS rebinding) is refused by its Host header, and another page by its Origin.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from headwise.report.server.limits import MOST_BYTES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK_NAMES = frozenset({"localhost"})
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
NO_PAGE = "default-src 'none'; frame-ancestors 'none'"


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Refused(Exception):
    def __init__(self, status: int, told: str) -> None:
        self.status, self.told = status, told


class Guard:
    """Lets requests to an application in, or answers them itself.

    Those that ask by a name of this machine, from its own page or from no page, with the token if there is
    one, and with a body that is not too large. A token comes in a header (`Authorization: Bearer …`), or in
    the address of the page (`?token=…`), which is answered by a cookie and an address without it.
    """

    def __init__(
        self, app: App, *, host: str, token: str | None = None, names: Iterable[str] = (), port: int = 0
    ) -> None:
        """host: where the server listens. names: other names by which it may be asked."""
        self.app = app
        self.token = token
        self.cookie = f"headwise-{port}"
        self.here = is_loopback(host)
        self.names = {name.lower() for name in names} | _LOOPBACK_NAMES
        if not self.here:
            self.names |= {host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = _only_once(scope["headers"])
            self._check_host(headers)
            self._check_origin(headers)
            went_in = self._check_token(scope, headers)
            _check_body(scope, headers)
        except _Refused as refused:
            await _answer(_outward(send), refused.status, {"error": refused.told})
            return
        if went_in is not None:
            await _outward(send)({"type": "http.response.start", "status": 303, "headers": went_in})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, _outward(send))

    def _check_host(self, headers: dict[str, str]) -> None:
        asked = headers.get("host", "")
        name = _host_name(asked)
        if name is None or not self._is_ours(name):
            raise _Refused(
                421,
                f"this server does not answer to the name {asked[:80]!r}; ask it by the address that it "
                "printed, or start it with --allow-host and that name",
            )

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.here  # no name resolves to where a number leads

    def _check_origin(self, headers: dict[str, str]) -> None:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
            raise _Refused(403, "only the page of this server may ask it, not a page from elsewhere")

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> list[tuple[bytes, bytes]] | None:
        """Return the headers of an answer that takes the token out of the address, None if it has none."""
        if self.token is None:
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and scope["path"] == "/" and "token" in query:
            if not self._is_token(query.pop("token")[0]):
                raise _Refused(401, "the token in the address is not the one of this server")
            rest = f"?{urlencode(query, doseq=True)}" if query else ""
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"
            return [(b"location", f"/{rest}".encode()), (b"set-cookie", cookie.encode())]
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return None
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(headers.get("cookie", ""))
        except CookieError:
            jar.clear()
        if self.cookie in jar and self._is_token(jar[self.cookie].value):
            return None
        raise _Refused(401, "this server asks for its token: open the address that it printed")

    def _is_token(self, given: str) -> bool:
        return self.token is not None and secrets.compare_digest(given.encode(), self.token.encode())


def _only_once(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; those that decide must not be there twice."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "authorization", "content-length"):
            raise _Refused(400, f"the request has more than one header {key}")
        found[key] = value.decode("latin-1")
    return found


def _host_name(header: str) -> str | None:
    """Return the name in a Host header, without port and brackets; None if it is none."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != header or "@" in header or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _check_body(scope: Scope, headers: dict[str, str]) -> None:
    if scope["method"] not in ("POST", "PUT", "PATCH"):
        return
    length = headers.get("content-length", "")
    if not length.isdecimal():
        raise _Refused(411, "a request must say how long it is (Content-Length)")
    if int(length) > MOST_BYTES:
        raise _Refused(413, f"the request has {int(length):,} bytes and at most {MOST_BYTES:,} are taken")
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise _Refused(415, "a request must be JSON (Content-Type: application/json)")


def _outward(send: Send) -> Send:
    """Add to every answer what keeps a browser from making something else of it."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = list(message.get("headers", ()))
            names = {name.lower() for name, _ in there}
            extra = [*_HEADERS, (b"content-security-policy", NO_PAGE.encode())]
            message = {**message, "headers": there + [each for each in extra if each[0] not in names]}
        await send(message)

    return with_headers


async def _answer(send: Send, status: int, told: dict[str, str]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
