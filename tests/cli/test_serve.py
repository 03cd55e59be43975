"""headwise serve."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from headwise.model import GPT, GPTConfig, save_model
from headwise.text import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("char", ["abc de fgh.\n"])
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, d_model=16, block_size=32))
    path = tmp_path_factory.mktemp("serve") / "model"
    save_model(path, model, tokenizer)
    return path


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def test_it_answers_until_ctrl_c(folder: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}/"
    command = [sys.executable, "-m", "headwise", "serve", str(folder), "--port", str(free_port)]
    # a browser that it must not open
    environment = os.environ | {"BROWSER": "false"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        told = server.stdout.readline()  # comes once it listens
        with httpx.Client(trust_env=False, timeout=60) as client:
            page = client.get(url).text
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert server.returncode == 130
    assert told + out == f"the page is at {url} (Ctrl-C ends it)\n"
    assert err == "headwise: stopped\n"
    assert "headwise-view" in page


def test_a_port_in_use_is_told_before_models_are_loaded(headwise: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = headwise("serve", tmp_path / "none", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "in use" in done.err
    assert "--port 0" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--text", " "], "--text is empty"),
        (["--text", "a" * 33], "reads at most 32"),
        (["--text", "Ω"], "--unknown skip"),
        (["--text", "abc", "--max-tokens", "2"], "at most 2"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        (["--port", "70000"], "--port must be"),
        (["--host", "nowhere.invalid"], "cannot listen"),
        (["--token", "abc"], "--token must be"),
    ],
)
def test_serve_says_what_is_wrong(
    headwise: Callable[..., Any], folder: Path, arguments: list[str], told: str
) -> None:
    done = headwise("serve", folder, *(arguments if "--port" in arguments else [*arguments, "--port", "0"]))
    assert done.code == 2
    assert told in done.err
    assert len(done.err.splitlines()) == 1


def test_a_model_named_twice_and_none_at_all(
    headwise: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    assert "named twice" in headwise("serve", folder, folder, "--port", "0").err
    done = headwise("serve", tmp_path, "--port", "0")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(
    headwise: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = headwise("serve", folder, "--port", "0")
    assert done.code == 2
    assert "pip install headwise[page]" in done.err
    assert len(done.err.splitlines()) == 1
