"""Two processes give what one gives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from headwise.heads import ablate, compare, greedy, importance, similarity, statistics
from headwise.heads.sharding import Shard, gathered, processes_of_torchrun, this_shard
from headwise.heads.silencing import How
from headwise.heads.sweep import Sweep
from headwise.hub.subject import OwnSubject
from headwise.model import GPT, GPTConfig
from headwise.text import Tokenizer

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="PyTorch was built without gloo"
)


TEXT = "the quick brown fox jumps over the lazy dog. "
TEXTS = [TEXT[i : i + 9 + i] for i in range(7)]


def small() -> OwnSubject:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=28, n_layer=2, d_model=16, n_head=2, block_size=32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    return OwnSubject(model, Tokenizer.train("char", [TEXT]))


def ablated(how: How, folder: Path | None = None) -> list[list[float]]:
    table = ablate(small(), TEXTS, how=how, tokens=40, folder=folder).table
    numbers: list[list[float]] = table.fillna(-9).to_numpy().tolist()  # NaN does not equal itself
    return numbers


def looked_at(every: int = 1) -> dict[str, list[list[float]]]:
    found = statistics(small(), TEXTS, batch_tokens=20, every=every)
    return {
        "numbers": found.table.fillna(-9).to_numpy().tolist(),
        "counts": found.counts.to_numpy().tolist(),
    }


def results(folder: Path | None = None) -> dict[str, Any]:
    """Return what this process finds out about a small model."""
    subject, other = small(), small()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.2)
    return {
        "zero": ablated("zero", folder),
        "mean": ablated("mean"),
        "resample": ablated("resample"),
        "importance": importance(subject, TEXTS, tokens=40).to_numpy().tolist(),
        "greedy": greedy(subject, TEXTS, budget=2, tokens=40).to_numpy().tolist(),
        "statistics": looked_at(),
        "statistics of every third": looked_at(every=3),
        "compared": compare(subject, other, TEXTS, tokens=40).fillna(-1).to_numpy().tolist(),
        "similarity": similarity(subject, TEXTS, tokens=40).fillna(-1).to_numpy().tolist(),
    }


@needs_gloo
def test_two_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of two, started as `torchrun` starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment = os.environ | shared | {"RANK": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(tmp_path / "sweep")]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"  # else it never joins, and nobody should wait for it
            with monkeypatch.context() as context:
                for name, value in (shared | {"RANK": "0"}).items():
                    context.setenv(name, value)
                with processes_of_torchrun() as shard:
                    assert shard == Shard(0, 2)
                    first = results(tmp_path / "sweep")
            second = json.loads(other.communicate(timeout=60)[0])
            parts = sorted(path.name for path in (tmp_path / "sweep").iterdir())
            assert parts == ["part-0.safetensors", "part-1.safetensors"]  # both had something to do
            alone = results()
            # one process goes on where two were: there is nothing left to do
            monkeypatch.setattr(Sweep, "_costs_of", _nothing_left)
            assert ablated("zero", tmp_path / "sweep") == alone["zero"]
        finally:
            other.kill()
            torch.set_num_threads(threads)
    assert first == second
    for name in ("zero", "mean", "resample", "importance", "greedy"):
        assert first[name] == alone[name], name
    for name in ("similarity", "compared"):
        assert torch.allclose(torch.tensor(first[name]), torch.tensor(alone[name]), atol=1e-12)
    for name in ("statistics", "statistics of every third"):
        assert first[name]["counts"] == alone[name]["counts"]  # each text is looked at once
        numbers = [torch.tensor(each[name]["numbers"], dtype=torch.float64) for each in (first, alone)]
        torch.testing.assert_close(*numbers, rtol=1e-12, atol=1e-12)  # added up in another order


def _nothing_left(*_: object) -> None:
    raise RuntimeError("something was left to do")


def test_alone_a_process_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with processes_of_torchrun() as shard:
        assert shard == this_shard() == Shard(0, 1)
        assert all(shard.takes(unit) for unit in range(5))
    there = torch.ones(3)
    assert gathered(there) is there


def test_each_unit_belongs_to_one_process() -> None:
    for world in (2, 3):
        owners = [[rank for rank in range(world) if Shard(rank, world).takes(unit)] for unit in range(7)]
        assert all(len(owner) == 1 for owner in owners)
        assert {owner[0] for owner in owners} == set(range(world))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("ready", flush=True)
    with processes_of_torchrun():
        print(json.dumps(results(Path(sys.argv[1]))))
