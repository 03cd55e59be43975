"""Checkpoints: whole or not there, checked when read, the one before as a fall-back."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.model import GPT, GPTConfig
from headwise.model.folder import load_weights
from headwise.training import NonFiniteError, TrainingConfig
from headwise.training import checkpoint as checkpoints
from headwise.training.checkpoint import (
    TrainingState,
    load_optimizer,
    newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from headwise.training.optimizer import Optimizer

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(n_layer=1, n_head=2, d_model=16, block_size=8, vocab_size=7))


@pytest.fixture
def save(model: GPT, tmp_path: Path) -> Callable[..., Path]:
    """Save the model as it would be after some step."""
    optimizer = Optimizer(model, TrainingConfig())

    def save(step: int, keep: int = 9) -> Path:
        with torch.no_grad():
            model.head.weight.fill_(step)
        progress = TrainingState(step=step, best_loss=1 / 3, random=random_state(torch.device("cpu")))
        return save_checkpoint(tmp_path, progress, model, optimizer, keep=keep)

    return save


def find(folder: Path) -> tuple[tuple[Path, TrainingState] | None, list[str]]:
    told: list[str] = []
    return newest_checkpoint(folder, told.append), told


def test_what_is_saved_comes_back(save: Callable[..., Path], model: GPT, tmp_path: Path) -> None:
    path = save(12)
    assert path.name == "step-000012"
    assert sorted(item.name for item in path.iterdir()) == sorted(FILES)  # no pickle anywhere
    found, told = find(tmp_path)
    assert found is not None
    assert found[0] == path
    assert found[1].step == 12
    assert found[1].best_loss == 1 / 3  # every bit
    assert told == []
    other = GPT(model.config)
    load_weights(path / "model.safetensors", other)
    assert torch.equal(other.head.weight, model.head.weight)


def test_the_newest_are_kept_by_number_not_by_name(save: Callable[..., Path], tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        save(step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1000000", "step-1000001"]
    found, _ = find(tmp_path)
    assert found is not None
    assert found[1].step == 1_000_001


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [cut, flip, remove])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(
    save: Callable[..., Path], tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    save(1)
    save(2)
    harm(save(3) / name)
    found, told = find(tmp_path)
    assert found is not None
    assert found[1].step == 2
    assert len(told) == 1
    assert "step-000003" in told[0]
    assert name in told[0]
    assert "goes on from step-000002" in told[0]
    # Put aside, so that keeping the newest N counts only good ones.
    assert (tmp_path / "step-000003.damaged").is_dir()
    save(4, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000003.damaged", "step-000004"]


def test_two_damaged_ones_fall_back_twice(save: Callable[..., Path], tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(step)
    for step in (2, 3):
        cut(tmp_path / f"step-00000{step}" / "model.safetensors")
    found, told = find(tmp_path)
    assert found is not None
    assert found[1].step == 1
    assert len(told) == 2


def test_none_that_is_whole_is_an_error_that_lists_them(save: Callable[..., Path], tmp_path: Path) -> None:
    for step in (1, 2):
        cut(save(step) / "optimizer.safetensors")
    with pytest.raises(ValueError, match="no checkpoint in .* can be used") as caught:
        find(tmp_path)
    assert "step-000001" in str(caught.value)
    assert "step-000002" in str(caught.value)
    assert (tmp_path / "step-000002").is_dir()  # nothing is touched


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"format": "other"}, "not that of a headwise checkpoint"), ({"version": 99}, "it has version 99")],
)
def test_a_foreign_checkpoint_is_not_taken(
    save: Callable[..., Path], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    path = save(1) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=reason):
        find(tmp_path)


def test_no_checkpoint_at_all_is_no_error(tmp_path: Path) -> None:
    assert find(tmp_path) == (None, [])
    assert find(tmp_path / "missing") == (None, [])


def test_a_write_cut_short_by_a_lost_process_is_not_seen(save: Callable[..., Path], tmp_path: Path) -> None:
    whole = save(1)
    shutil.copytree(whole, tmp_path / ".step-000002.x1y2.tmp")
    found, told = find(tmp_path)
    assert found is not None
    assert found[1].step == 1
    assert told == []


@pytest.mark.parametrize("when", ["model", "optimizer", "state"])
def test_a_full_disk_leaves_the_checkpoint_before_intact(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    save(1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = {"model": "save_weights", "optimizer": "write_tensors", "state": "write_json"}[when]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(checkpoints, target, full)
        save(2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    found, told = find(tmp_path)
    assert found is not None
    assert told == []


@pytest.mark.skipif(os.name == "nt", reason="resource limits are a POSIX thing")
def test_a_write_that_the_system_refuses_leaves_the_checkpoint_before_intact(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    import resource

    save(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*safetensors"):
            save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    found, _ = find(tmp_path)
    assert found is not None


def test_weights_that_are_not_finite_are_not_saved(
    save: Callable[..., Path], model: GPT, tmp_path: Path
) -> None:
    save(1)
    with torch.no_grad():
        model.token_embedding.weight[0, 0] = torch.inf
        model.blocks[0].attention.q_proj.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="weights after step 2 are not finite"):
        save(2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_the_optimizer_of_another_model_is_refused(save: Callable[..., Path]) -> None:
    path = save(1)
    wider = GPT(GPTConfig(n_layer=1, n_head=2, d_model=32, block_size=8, vocab_size=7))
    with pytest.raises(ValueError, match="does not belong"):
        load_optimizer(path, Optimizer(wider, TrainingConfig()))


def test_random_numbers_go_on_where_they_were() -> None:
    cpu = torch.device("cpu")
    state = json.loads(json.dumps(random_state(cpu)))
    first = torch.rand(5)
    restore_random_state(state, cpu)
    assert torch.equal(torch.rand(5), first)
