from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from headwise.text import TokenFile, Tokenizer, write_tokens

SMALL = Tokenizer.from_alphabet("abc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "t.tokens", [np.array([0, 1]), np.array([2, 1, 0])], SMALL)
    return tmp_path / "t.tokens"


def test_ids_come_back_read_only(path: Path) -> None:
    file = TokenFile(path, SMALL)
    assert file.count == 5
    assert file.path == path
    assert file.tokens.tolist() == [0, 1, 2, 1, 0]
    assert file.tokens.dtype == np.dtype("<u2")
    with pytest.raises(ValueError, match="read-only"):
        file.tokens[0] = 1


def test_the_layout_is_the_documented_one(path: Path) -> None:
    raw = path.read_bytes()
    assert raw[:8] == b"HEADWISE"
    assert struct.unpack("<IIQ", raw[8:24]) == (1, 2, 5)
    assert raw[24:56].hex() == SMALL.hash
    assert raw[56:] == bytes(8) + struct.pack("<5H", 0, 1, 2, 1, 0)


def test_a_vocabulary_beyond_two_bytes_takes_four(tmp_path: Path) -> None:
    private = [*range(0xF0000, 0xFFFFE), *range(0x100000, 0x100003)]
    assert len(private) == (1 << 16) + 1
    wide = Tokenizer.from_alphabet(map(chr, private))
    write_tokens(tmp_path / "w", [np.array([0, 1 << 16])], wide)
    file = TokenFile(tmp_path / "w", wide)
    assert file.tokens.tolist() == [0, 1 << 16]
    assert file.tokens.dtype == np.dtype("<u4")


def test_a_file_of_no_tokens_can_be_read(tmp_path: Path) -> None:
    assert write_tokens(tmp_path / "none", [], SMALL) == 0
    assert TokenFile(tmp_path / "none").tokens.tolist() == []


def test_a_file_replaced_later_does_not_change_what_is_read(path: Path) -> None:
    file = TokenFile(path)
    other = path.with_name("other")
    write_tokens(other, [np.array([2, 2, 2])], SMALL)
    other.replace(path)
    assert file.tokens.tolist() == [0, 1, 2, 1, 0]
    assert TokenFile(path).tokens.tolist() == [2, 2, 2]


def _patched(path: Path, offset: int, new: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(new)] = new
    path.write_bytes(raw)


def test_a_file_of_another_kind_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(np.arange(100, dtype=np.uint16).tobytes())
    (tmp_path / "empty").write_bytes(b"")
    for name in ("plain", "empty"):
        with pytest.raises(ValueError, match=f"{name} is not a token file"):
            TokenFile(tmp_path / name)


def test_another_version_is_refused(path: Path) -> None:
    _patched(path, 8, struct.pack("<I", 2))
    with pytest.raises(ValueError, match="version 2, but this headwise reads version 1"):
        TokenFile(path)


def test_an_impossible_width_is_refused(path: Path) -> None:
    _patched(path, 12, struct.pack("<I", 8))
    with pytest.raises(ValueError, match="damaged: 8 bytes per token"):
        TokenFile(path)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_cut_short_or_too_long_is_refused(path: Path, change: int) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:change] if change < 0 else raw + b"x")
    with pytest.raises(ValueError, match=rf"damaged: 5 tokens make 74 bytes, but it has {74 + change} bytes"):
        TokenFile(path)


def test_the_ids_of_another_tokenizer_are_refused(path: Path) -> None:
    other = Tokenizer.from_alphabet("abd")
    with pytest.raises(ValueError, match=rf"another tokenizer \({SMALL.hash[:12]}…\).*{other.hash[:12]}"):
        TokenFile(path, other)
    assert TokenFile(path).tokenizer_hash == SMALL.hash


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        TokenFile(tmp_path / "gone")
