from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.text import Corpus, normalise, open_corpus
from headwise.text.corpus import read_text


def _text(spec: Path | str) -> str:
    return "".join(open_corpus(str(spec)).chunks())


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


# One file


def test_a_file_is_read_as_utf8_whatever_its_suffix(tmp_path: Path) -> None:
    assert _text(_write(tmp_path / "mémo.log", "é🙂 한글\n")) == "é🙂 한글\n"


def test_a_file_is_utf8_under_any_locale(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.txt", "é🙂")
    code = (
        "import sys; from headwise.text import open_corpus\n"
        "print(ascii(''.join(open_corpus(sys.argv[1]).chunks())))"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, str(path)],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ascii("é🙂")


def test_the_byte_order_mark_is_dropped_but_not_a_second_one(tmp_path: Path) -> None:
    assert _text(_write(tmp_path / "a.txt", "\ufeff\ufeffa")) == "\ufeffa"


def test_a_corpus_can_be_read_again(tmp_path: Path) -> None:
    corpus = open_corpus(str(_write(tmp_path / "a.txt", "abc")))
    assert ["".join(corpus.chunks()) for _ in range(2)] == ["abc", "abc"]


@settings(deadline=None, max_examples=150)
@given(text=st.text(st.sampled_from("각가각e\u0301\r\nab🙂\ufeff漢"), max_size=30), block=st.integers(1, 5))
def test_a_file_reads_the_same_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int
) -> None:
    path = _write(tmp_path_factory.getbasetemp() / "blocks.txt", text)
    read = "".join(Corpus("t", lambda: [read_text(path, block)]).chunks())
    assert read == normalise(text.removeprefix("\ufeff"))


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("content", "byte", "offset"),
    [
        (b"ab\xffcd", "FF", 2),
        ("한글".encode() + b"\xed\x95", "ED", 6),
        (b"\xc3(", "C3", 0),
        (b"a" * 9 + b"\x80", "80", 9),
    ],
)
def test_bytes_that_are_not_utf8_are_named_with_file_and_offset(
    tmp_path: Path, content: bytes, byte: str, offset: int, block: int
) -> None:
    path = _write(tmp_path / "bad.txt", content)
    with pytest.raises(
        ValueError, match=rf"bad\.txt is not UTF-8: byte 0x{byte} at offset {offset}; .*iconv"
    ):
        list(read_text(path, block))


def test_utf16_is_recognised(tmp_path: Path) -> None:
    path = _write(tmp_path / "wide.txt", "abc".encode("utf-16"))
    with pytest.raises(ValueError, match="iconv -f UTF-16 -t UTF-8"):
        _text(path)


# Folders and patterns


@pytest.fixture
def library(tmp_path: Path) -> Path:
    _write(tmp_path / "b.txt", "second")
    _write(tmp_path / "a.md", "first")
    _write(tmp_path / "c" / "d.TXT", "third\r")
    _write(tmp_path / "empty.txt", "")
    _write(tmp_path / "z.py", "not text")
    _write(tmp_path / ".git" / "hidden.txt", "hidden")
    _write(tmp_path / ".hidden.txt", "hidden")
    return tmp_path


def test_a_folder_gives_its_texts_in_order_with_a_blank_line_between(library: Path) -> None:
    assert _text(library) == "first\n\nsecond\n\nthird\n"


def test_a_pattern_gives_every_file_that_matches_in_order(library: Path) -> None:
    assert _text(library / "**" / "*.[tT]*") == "second\n\nthird\n"
    assert _text(library / "?.py") == "not text"


def test_the_home_folder_may_be_written_as_a_tilde(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(library))
    monkeypatch.setenv("USERPROFILE", str(library))
    assert _text("~/b.txt") == "second"


def test_a_file_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    assert _text(_write(tmp_path / "notes[1].txt", "x")) == "x"


# Streams


def test_a_dash_is_the_standard_input_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("안녕\r\n".encode())))
    corpus = open_corpus("-")
    assert ["".join(corpus.chunks()) for _ in range(2)] == ["안녕\n"] * 2
    assert len(list(tmp_path.iterdir())) == 1
    del corpus
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_standard_input_is_an_error_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match="the text '-' is empty"):
        open_corpus("-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_can_be_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("abc",))
    writer.start()
    corpus = open_corpus(str(tmp_path / "pipe"))
    writer.join()
    assert ["".join(corpus.chunks()) for _ in range(2)] == ["abc", "abc"]


# Nothing there


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("missing.txt", "there is no file or folder 'missing.txt'"),
        ("*.none", "no file matches '.*none'"),
        ("folder", "the folder 'folder' holds no .txt or .md file"),
        ("", "the name of the text is empty"),
    ],
)
def test_what_is_not_there_is_said_with_what_could_be(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "folder" / "a.py", "x")
    with pytest.raises(ValueError, match=message + r".*python-docs, python-source, shakespeare"):
        open_corpus(spec)


def test_empty_files_are_an_error(tmp_path: Path) -> None:
    _write(tmp_path / "a.txt", "")
    with pytest.raises(ValueError, match=r"is empty \(1 file, 0 bytes\)"):
        open_corpus(str(tmp_path / "a.txt"))
    _write(tmp_path / "b.txt", "")
    with pytest.raises(ValueError, match=r"is empty \(2 files, 0 bytes\)"):
        open_corpus(str(tmp_path))


# From Python


@pytest.mark.parametrize(
    ("documents", "expected"),
    [([], []), ([[""], []], []), ([["a", "b"], [], ["c"]], ["a", "b", "\n\n", "c"])],
)
def test_documents_are_joined_and_empty_ones_left_out(
    documents: list[Iterable[str]], expected: list[str]
) -> None:
    assert "".join(Corpus("d", lambda: documents).chunks()) == "".join(expected)


def test_a_string_can_be_a_corpus() -> None:
    corpus = Corpus.from_text("cafe\u0301\r\n")
    assert "".join(corpus.chunks()) == "café\n"
    assert repr(corpus) == "Corpus('text')"


def test_the_standard_input_that_is_not_utf8_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    with pytest.raises(ValueError, match=r"^- is not UTF-8: byte 0xFF at offset 2"):
        list(open_corpus("-").chunks())
