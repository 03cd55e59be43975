"""Writing all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwise.files import check_place, replacing, replacing_folder, write_json, write_text


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old 나\n")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError("half way")
    assert path.read_bytes() == "old 나\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "step"
    with replacing_folder(path) as temporary:
        (temporary / "x").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing_folder(path) as temporary:
        (temporary / "x").write_text("new")
        raise KeyboardInterrupt
    assert (path / "x").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_folder_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "step"
    for name in ("a", "b"):
        with replacing_folder(path) as temporary:
            (temporary / name).write_text(name)
    assert [p.name for p in path.iterdir()] == ["b"]


def test_files_follow_the_users_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {"한": 1})
        with replacing_folder(tmp_path / "d") as temporary:
            (temporary / "sub").mkdir(mode=0o700)
            (temporary / "sub" / "private").touch(mode=0o600)  # as safetensors makes its files
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "d" / "sub").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "d" / "sub" / "private").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n  "한": 1\n}\n'


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    check_place(tmp_path / "new" / "folder" / "a.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match="file is not a folder"):
        check_place(tmp_path / "file" / "sub" / "a.csv")
    with pytest.raises(ValueError, match="it is a folder"):
        check_place(tmp_path)


def test_a_folder_that_may_not_be_written_into_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ValueError, match="you may not write into"):
        check_place(tmp_path / "a.csv")
