"""What the server answers: the page, and what it asks for while heads are switched off and on."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response, StreamingResponse

from headwise.model.sampling import Sampling
from headwise.report.server.limits import Limits
from headwise.report.server.looking import Looker
from headwise.report.server.page import live_page, policy
from headwise.report.server.reading import reading
from headwise.report.server.requests import ReadRequest, TextRequest, WriteRequest
from headwise.report.server.worker import AbandonedError, BusyError, Worker
from headwise.report.server.writing import Writing

T = TypeVar("T")

_USUAL_TOKENS = 60


def make_app(workers: Sequence[Worker], text: str, limits: Limits | None = None) -> FastAPI:
    """Return the application; whoever runs it puts a `Guard` before it.

    text: what the page begins with, on the first model.

    Raises ValueError for no models, two of one name, and a text that the first one cannot read.
    """
    limits = limits or Limits()
    by_name = {worker.name: worker for worker in workers}
    if not by_name or len(by_name) < len(workers):
        raise ValueError("serve needs at least one model, and each once; name them by different paths")
    lookers = {name: Looker(worker.subject, worker.heads) for name, worker in by_name.items()}
    first = workers[0]
    island = lookers[first.name].look(ids_of(first, text, limits))
    config = {
        "text": text,
        "model": first.name,
        "models": [_about(worker, limits) for worker in workers],
        "most": limits.new_tokens,
    }
    app = FastAPI(title="headwise", docs_url=None, redoc_url=None, openapi_url=None)

    def worker_of(asked: TextRequest) -> Worker:
        if asked.model not in by_name:
            raise ValueError(f"there is no model {asked.model[:80]!r} here; there is {', '.join(by_name)}")
        return by_name[asked.model]

    @app.get("/")
    async def page() -> Response:
        nonce = secrets.token_urlsafe(16)
        return HTMLResponse(
            live_page(island, config, nonce), headers={"content-security-policy": policy(nonce)}
        )

    @app.get("/api")
    async def about() -> Response:
        return _json(config)

    @app.post("/api/look")
    async def look(asked: TextRequest, request: Request) -> Response:
        worker = worker_of(asked)

        def job() -> dict[str, Any]:
            return lookers[worker.name].look(
                ids_of(worker, asked.text, limits), worker.places(asked.off), asked.how
            )

        return _json(await _wanted(request, worker, job))

    @app.post("/api/read")
    async def read(asked: ReadRequest, request: Request) -> Response:
        worker = worker_of(asked)

        def job() -> dict[str, Any]:
            ids = ids_of(worker, asked.text, limits)
            return reading(worker.subject, ids, worker.places(asked.off), asked.how, asked.at)

        return _json(await _wanted(request, worker, job))

    @app.post("/api/write")
    async def write(asked: WriteRequest, request: Request) -> Response:
        worker = worker_of(asked)
        tokens = min(_USUAL_TOKENS, limits.new_tokens) if asked.tokens is None else asked.tokens
        if tokens > limits.new_tokens:
            raise ValueError(f"tokens is {tokens}, and at most {limits.new_tokens} are written at once")

        def begin() -> Writing:
            ids = ids_of(worker, asked.text, limits)
            sampling = Sampling(asked.temperature, asked.top_k or None)
            return Writing(
                worker.subject,
                ids,
                worker.places(asked.off),
                asked.how,
                tokens=tokens,
                sampling=sampling,
                seed=asked.seed,
            )

        writing = await _wanted(request, worker, begin)
        return StreamingResponse(_lines(request, worker, writing), media_type="application/x-ndjson")

    _answer_errors(app)
    return app


def ids_of(worker: Worker, text: str, limits: Limits) -> list[int]:
    """Return the ids of a text that is neither empty nor too long; raise ValueError for any other."""
    subject = worker.subject
    if not text:
        raise ValueError("the text is empty; type at least one character")
    ids = subject.encode(text)
    if not ids:
        raise ValueError("the text holds no tokens that the model knows; type something else")
    if subject.max_tokens is not None and len(ids) > subject.max_tokens:
        raise ValueError(
            f"the text has {len(ids):,} tokens, and {subject.name} reads at most {subject.max_tokens:,}; "
            "shorten it"
        )
    if len(ids) > limits.tokens:
        raise ValueError(
            f"the text has {len(ids):,} tokens, and this server takes at most {limits.tokens:,} "
            "(--max-tokens); shorten it"
        )
    return ids


def _about(worker: Worker, limits: Limits) -> dict[str, Any]:
    subject = worker.subject
    most = limits.tokens if subject.max_tokens is None else min(limits.tokens, subject.max_tokens)
    return {"name": worker.name, "predicts": subject.predicts, "tokens": most}


async def _wanted(request: Request, worker: Worker, job: Callable[[], T]) -> T:
    """Return what a job gives; stop it as soon as whoever asked is gone."""
    stop = threading.Event()
    work = asyncio.ensure_future(worker.run(job, stop))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise AbandonedError
    finally:
        stop.set()
        for task in (work, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _lines(request: Request, worker: Worker, writing: Writing) -> AsyncIterator[bytes]:
    """Write on as long as somebody reads: a line of JSON per token; the last says whether it ended well."""
    stop = threading.Event()
    try:
        while not writing.done:
            if await request.is_disconnected():
                return
            yield _line(await worker.run(writing.step, stop))
        yield _line({"done": True})
    except AbandonedError:
        yield _line({"error": _CLOSING})
    except (ValueError, BusyError, RuntimeError) as error:
        yield _line({"error": _sentence(error)})
    finally:
        stop.set()


_NO_JSON = "the body of the request is not a JSON object that can be read"
_CLOSING = "the server has been stopped"


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _json(told: Any, status: int = 200) -> Response:
    body = json.dumps(told, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, media_type="application/json")


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _answer_errors(app: FastAPI) -> None:
    """Answer every fault with one sentence as JSON; a traceback goes to the terminal at most."""

    @app.exception_handler(ValueError)
    @app.exception_handler(TypeError)
    async def mistake(_: Request, error: Exception) -> Response:
        return _json({"error": _sentence(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] in ("json_invalid", "model_attributes_type") or first["loc"] == ("body",):
            return _json({"error": _NO_JSON}, 422)
        where = ".".join(str(part) for part in first["loc"][1:])
        told = str(first["msg"]).removeprefix("Value error, ")
        return _json({"error": f"{where}: {told}" if where else told}, 422)

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: Exception) -> Response:
        return _json({"error": _sentence(error)}, 503)

    @app.exception_handler(AbandonedError)
    async def abandoned(_: Request, __: Exception) -> Response:
        return _json({"error": _CLOSING}, 503)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        told = f"{error.detail}: there is nothing here by that name or method"
        return _json({"error": told if error.status_code in (404, 405) else _NO_JSON}, error.status_code)

    @app.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> Response:
        return _json({"error": "something went wrong here; the terminal of the server says more"}, 500)
