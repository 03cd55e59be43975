"""Who is let in."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headwise.report.server.guard import Guard, is_loopback
from headwise.report.server.limits import MOST_BYTES

TOKEN = "a-token-of-the-test"


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def ask(
    method: str = "GET", path: str = "/", *, guard: dict[str, Any] | None = None, **options: Any
) -> httpx.Response:
    """Ask through a guard; by default of a server at 127.0.0.1:8000."""
    options.setdefault("headers", {}).setdefault("host", "127.0.0.1:8000")

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(inside, **{"host": "127.0.0.1", "port": 8000, **(guard or {})}))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


def sentence(answer: httpx.Response) -> str:
    told: str = answer.json()["error"]
    return told


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost", "LocalHost:9999", "[::1]:8000", "127.8.8.8", "localhost."]
)
def test_this_machine_is_asked_by_its_own_names(host: str) -> None:
    assert ask(headers={"host": host}).text == "in"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "10.0.0.7",
        "localhost:x",
        "a b",
    ],
)
def test_a_name_that_only_resolves_to_this_machine_is_refused(host: str) -> None:
    answer = ask(headers={"host": host})
    assert answer.status_code == 421
    assert "does not answer to the name" in sentence(answer)


def test_on_the_network_numbers_and_given_names_will_do() -> None:
    guard = {"host": "0.0.0.0", "names": ["Box.example"]}
    for host in ("192.168.0.7:8000", "[fe80::1]:8000", "box.example:8000", "localhost"):
        assert ask(guard=guard, headers={"host": host}).text == "in"
    assert ask(guard=guard, headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("http://evil.example", 403),
        ("http://127.0.0.1:9000", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
    ],
)
def test_only_the_own_page_may_ask(origin: str, status: int) -> None:
    headers = {"origin": origin}
    answer = ask("POST", "/api/read", json={}, headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert "only the page of this server" in sentence(answer)


def test_what_a_form_can_send_is_refused() -> None:
    answer = ask("POST", "/api/read", content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, sentence(answer)) == (
        415,
        "a request must be JSON (Content-Type: application/json)",
    )


def test_a_body_has_a_length_and_a_limit() -> None:
    answer = ask(
        "POST", "/api/read", content=b" " * (MOST_BYTES + 1), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert "at most" in sentence(answer)

    async def pieces() -> Any:
        yield b"{}"

    answer = ask("POST", "/api/read", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 411


def test_a_header_that_decides_may_not_be_there_twice() -> None:
    headers = [("host", "127.0.0.1:8000"), ("host", "evil.example")]

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(inside, host="127.0.0.1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.get("/", headers=headers)

    assert asyncio.run(asked()).status_code == 400


def test_without_the_token_nothing_is_answered() -> None:
    guard = {"host": "0.0.0.0", "token": TOKEN}
    for options in (
        {},
        {"headers": {"authorization": f"Bearer {TOKEN}x"}},
        {"headers": {"authorization": TOKEN}},
        {"headers": {"authorization": "Bearer ü".encode()}},
        {"headers": {"cookie": "headwise-8000=wrong"}},
        {"headers": {"cookie": f"headwise-9000={TOKEN}"}},
    ):
        answer = ask(guard=guard, **options)
        assert answer.status_code == 401
        assert "asks for its token" in sentence(answer)
    assert ask(path="/api?token=" + TOKEN, guard=guard).status_code == 401  # only the page's address has it
    assert ask(path="/?token=wrong", guard=guard).status_code == 401


def test_the_token_comes_in_a_header_or_leaves_the_address_for_a_cookie() -> None:
    guard = {"host": "0.0.0.0", "token": TOKEN}
    assert ask(guard=guard, headers={"authorization": f"Bearer {TOKEN}"}).text == "in"
    answer = ask(path=f"/?token={TOKEN}&a=1", guard=guard)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?a=1")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax"} <= {part.strip() for part in cookie.split(";")}
    assert ask(guard=guard, headers={"cookie": cookie.split(";")[0]}).text == "in"


def test_every_answer_is_closed_to_other_uses() -> None:
    for answer in (ask(), ask(headers={"host": "evil.example"})):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("box", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, here: bool) -> None:
    assert is_loopback(host) is here
