"""The server as its clients meet it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headwise.hub import Subject
from headwise.hub.writing import write_ids
from headwise.model import generate
from headwise.model.sampling import Sampling
from headwise.report.server import Address, Limits, Worker, make_app
from headwise.report.server.reading import reading
from headwise.report.server.writing import Writing

TEXT = "abc cab abc"
EVERY_HEAD = [[layer, head] for layer in range(2) for head in range(4)]


def written(answer: httpx.Response) -> tuple[str, str, dict[str, Any]]:
    lines = [json.loads(line) for line in answer.text.splitlines()]
    plain, silent = ("".join(line.get(side, "") for line in lines) for side in ("plain", "silent"))
    return plain, silent, lines[-1]


def test_the_page_is_one_answer_that_asks_nothing_of_others(served: Any) -> None:
    answer = served.client.get("/")
    policy = answer.headers["content-security-policy"]
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in answer.text
    assert "connect-src 'self'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "http-equiv" not in answer.text
    assert nonce not in served.client.get("/").text
    about = served.client.get("/api").json()
    assert about["models"] == [{"name": "tiny", "predicts": "next token", "tokens": 100}]


def test_reading_and_looking_answer_with_numbers(served: Any, subject: Subject) -> None:
    told = served.post("read", text=TEXT, off=[[0, 1]], at=2).json()
    assert told == json.loads(json.dumps(reading(subject, subject.encode(TEXT), [(0, 1)], "zero", 2)))
    island = served.post("look", text=TEXT, off=[[0, 1]], how="mean").json()
    assert len(island["queries"]["labels"]) == len(subject.encode(TEXT))
    assert island["other"]["title"] == "tiny"


def test_writing_comes_token_by_token_beside_the_untouched_model(served: Any, subject: Subject) -> None:
    answer = served.post("write", text=TEXT, off=EVERY_HEAD, tokens=12, temperature=1)
    assert answer.headers["content-type"] == "application/x-ndjson"
    plain, silent, last = written(answer)
    assert last == {"done": True}
    assert len(answer.text.splitlines()) >= 12
    whole = generate(subject.gpt, subject.tokenizer, TEXT, max_new_tokens=12, seed=0)  # type: ignore[attr-defined]
    assert plain == whole
    assert silent != plain
    again = written(served.post("write", text=TEXT, tokens=12, temperature=1))
    assert again == (whole, "", {"done": True})


def test_a_seed_draws_the_same_text_again(served: Any, subject: Subject) -> None:
    options = {"text": TEXT, "tokens": 20, "temperature": 1.0, "seed": 5}
    first = written(served.post("write", **options))
    assert first == written(served.post("write", **options))
    ids = subject.encode(TEXT)
    assert first[0] == subject.decode(list(write_ids(subject, ids, 20, Sampling(1.0), 5)))
    assert first[0] != written(served.post("write", **options | {"seed": 6}))[0]


@pytest.mark.parametrize(
    ("what", "asked", "told"),
    [
        ("read", {"text": ""}, "the text is empty"),
        ("look", {"text": "a" * 101}, "the text has 101 tokens, and this server takes at most 100"),
        ("look", {"text": "a" * 129}, "tiny reads at most 128"),
        ("read", {"text": "a", "off": [[0, 4]]}, "heads names head 4 of layer 0"),
        ("read", {"text": "a", "off": [[-1, 0]]}, "off.0.0: "),
        ("read", {"text": "a", "model": "other"}, "there is no model 'other' here; there is tiny"),
        ("read", {"text": "a", "at": 7}, "token 7"),
        ("read", {"text": "\ud800"}, "half a character"),
        ("read", {"text": 7}, "text: "),
        ("read", {"text": "a", "how": "resample"}, "how: "),
        ("read", {"text": "a", "more": 1}, "more: "),
        ("read", {}, "text: Field required"),
        ("write", {"text": "a", "tokens": 51}, "at most 50 are written"),
        ("write", {"text": "a", "tokens": 0}, "tokens: "),
        ("write", {"text": "a", "temperature": -1}, "temperature: "),
        ("write", {"text": "a", "top_k": 999}, "top_k=999"),
        ("write", {"text": "a", "off": [[5, 0]]}, "heads names layer 5"),
    ],
)
def test_what_cannot_be_answered_is_told_in_a_sentence(served: Any, what: str, asked: Any, told: str) -> None:
    content = json.dumps({"model": "tiny", **asked})
    answer = served.client.post(f"/api/{what}", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert told in answer.json()["error"]


def test_what_is_no_json_and_what_is_not_there(served: Any) -> None:
    headers = {"content-type": "application/json"}
    answer = served.client.post("/api/read", content=b"{", headers=headers)
    assert answer.status_code == 422
    assert "JSON" in answer.json()["error"]
    assert served.client.get("/docs").status_code == 404
    assert "error" in served.client.get("/openapi.json").json()
    assert served.client.get("/api/read").status_code == 405


def test_clients_at_once_never_get_each_others_heads(served: Any, subject: Subject) -> None:
    cases: list[list[tuple[int, int]]] = [[], [(0, 1)], [(1, 2)], [(0, 0), (1, 1)]]
    ids = subject.encode(TEXT)
    wanted = [json.loads(json.dumps(reading(subject, ids, off, "zero", None))) for off in cases]
    alone = {}
    for off in cases:
        alone[str(off)] = written(served.post("write", text=TEXT, off=off, tokens=8))

    def ask(number: int) -> bool:
        off = cases[number % len(cases)]
        if number % 3 == 0:
            return written(served.post("write", text=TEXT, off=off, tokens=8)) == alone[str(off)]
        return bool(served.post("read", text=TEXT, off=off).json() == wanted[number % len(cases)])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(24)))
    assert all(not layer.module._forward_pre_hooks for layer in subject.layers)


class Counted:
    """Makes a model slow, and counts how often it runs."""

    def __init__(self, subject: Subject, seconds: float) -> None:
        self.runs = 0

        def count(*_: object) -> None:
            self.runs += 1
            time.sleep(seconds)

        self.handles = [layer.module.register_forward_hook(count) for layer in subject.layers]

    def settled(self) -> bool:
        """Whether it has stopped running."""
        time.sleep(0.15)
        before = self.runs
        time.sleep(0.3)
        return self.runs == before


@pytest.fixture
def slow(subject: Subject) -> Any:
    found = Counted(subject, 0.03)
    yield found
    for handle in found.handles:
        handle.remove()


def test_writing_that_nobody_reads_any_more_stops(served: Any, slow: Counted) -> None:
    body = {"model": "tiny", "text": TEXT, "off": [[0, 0]], "tokens": 50}
    with (
        httpx.Client(base_url=served.url, trust_env=False) as client,
        client.stream("POST", "/api/write", json=body) as answer,
    ):
        next(answer.iter_lines())
    assert slow.settled()
    assert slow.runs < 40  # of 200


@pytest.mark.parametrize("what", ["look", "read"])
def test_an_answer_that_nobody_waits_for_is_not_worked_out(served: Any, slow: Counted, what: str) -> None:
    body = {"model": "tiny", "text": TEXT, "off": [[0, 0]]}
    with (
        httpx.Client(base_url=served.url, trust_env=False, timeout=0.05) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        client.post(f"/api/{what}", json=body)
    assert slow.settled()
    assert slow.runs <= 3
    assert served.post("read", text=TEXT).status_code == 200


@pytest.mark.parametrize("body", [b"{bad", b"\xff\xfe{}", b"[]", b"null", b"", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_told_so(served: Any, body: bytes) -> None:
    answer = served.client.post("/api/look", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json() == {"error": "the body of the request is not a JSON object that can be read"}


def test_too_many_at_once_are_told_to_come_back(
    serving: Callable[..., Any], subject: Subject, slow: Counted
) -> None:
    found = serving([Worker(subject, most=2)], "abc")
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(found.post("look", text=TEXT).status_code))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {200, 503}
    assert answers.count(200) >= 2


def test_a_server_that_is_stopped_ends_what_it_writes(
    serving: Callable[..., Any], subject: Subject, slow: Counted
) -> None:
    found = serving([Worker(subject)], "abc")
    body = {"model": "tiny", "text": TEXT, "tokens": 100}
    with found.client.stream("POST", "/api/write", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        found.workers[0].close()
        last = json.loads(list(lines)[-1])
    assert last == {"error": "the server has been stopped"}
    assert found.error("read", text="abc") == (503, "the server has been stopped")


def test_a_fault_of_ours_is_no_traceback_for_others(
    serving: Callable[..., Any], subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headwise.report.server.app as app

    def fails(*_: object) -> None:
        raise KeyError("inside")

    found = serving([Worker(subject)], "abc")
    monkeypatch.setattr(app, "reading", fails)
    assert found.error("read", text="abc") == (
        500,
        "something went wrong here; the terminal of the server says more",
    )


def test_several_models_are_told_apart(serving: Callable[..., Any], subject: Subject) -> None:
    other = Subject.of(subject.model, subject.tokenizer, "other")  # type: ignore[attr-defined]
    found = serving([Worker(subject), Worker(other)], "abc")
    assert [one["name"] for one in found.client.get("/api").json()["models"]] == ["tiny", "other"]
    assert found.post("look", model="other", text="abc").json()["title"] == "other"
    with pytest.raises(ValueError, match="each once"):
        make_app([Worker(subject), Worker(subject)], "abc")
    with pytest.raises(ValueError, match="at most 2"):
        make_app([Worker(subject)], "a b c", Limits(tokens=2))


def test_heads_that_were_not_pruned_keep_their_numbers(serving: Callable[..., Any], subject: Subject) -> None:
    numbers = {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    found = serving([Worker(subject, heads=numbers)], "abc")
    assert [layer["heads"] for layer in found.post("look", text=TEXT).json()["layers"]] == list(
        numbers.values()
    )
    told = found.post("read", text=TEXT, off=[[1, 5]]).json()
    assert told["loss"] == reading(subject, subject.encode(TEXT), [(1, 2)], "zero", None)["loss"]
    assert found.error("read", text=TEXT, off=[[0, 1]]) == (
        422,
        "there is no head 1 in layer 0 of tiny: it has [0, 2, 4, 6]",
    )


def test_a_network_address_has_a_token(serving: Callable[..., Any], subject: Subject) -> None:
    found = serving([Worker(subject)], "abc", host="0.0.0.0")
    assert found.client.get("/").status_code == 401


def test_addresses_that_cannot_be_had(served: Any) -> None:
    port = int(served.url.rsplit(":", 1)[1])
    with pytest.raises(ValueError, match=f"cannot listen on port {port} .*--port 0"):
        Address.open("127.0.0.1", port)
    with pytest.raises(ValueError, match="--port must be from 0"):
        Address.open("127.0.0.1", 70000)
    with pytest.raises(ValueError, match="cannot listen"):
        Address.open("nowhere.invalid", 0)
    for token in ("short", "with space", "ü" * 10, "a;b" * 9):
        with pytest.raises(ValueError, match="--token must be"):
            Address.open("127.0.0.1", 0, token=token)
    with_token = Address.open("127.0.0.1", 0, token="12345678")
    assert with_token.url == f"http://127.0.0.1:{with_token.port}/?token=12345678"
    network = Address.open("0.0.0.0", 0)
    assert network.token is not None
    assert len(network.token) >= 32
    here = Address.open("localhost", 0)
    assert here.token is None
    for address in (with_token, network, here):
        address.socket.close()


def test_two_texts_grow_until_both_have_ended(subject: Subject) -> None:
    writing = Writing(subject, subject.encode(TEXT), [(0, 0)], "mean", tokens=3, sampling=Sampling(0), seed=0)
    grown = [writing.step() for _ in range(4)]
    assert writing.done
    assert set(grown[0]) == {"plain", "silent"}
