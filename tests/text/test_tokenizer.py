from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from headwise.text import Tokenizer, normalise
from headwise.text.definition import byte_level_engine


def test_known_text_comes_back_exactly(tokenizer: Tokenizer, mixed: str) -> None:
    ids = tokenizer.encode(mixed)
    assert tokenizer.decode(ids) == mixed
    assert all(0 <= index < tokenizer.vocab_size for index in ids)


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60))
def test_bpe_takes_any_text_and_gives_it_back(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == normalise(text)


def test_the_character_vocabulary_is_the_sorted_alphabet() -> None:
    tokenizer = Tokenizer.train("char", ["ba", "c🙂가", "ab\r\n"])
    assert tokenizer.vocab_size == 6
    assert tokenizer.decode(range(6)) == "\nabc가🙂"
    assert tokenizer.encode("b가\r") == [2, 4, 0]
    assert tokenizer.alphabet == frozenset("\nabc가🙂")


def test_bpe_has_every_byte_and_no_prefix_space(bpe: Tokenizer) -> None:
    assert {bpe.token_bytes(index) for index in range(bpe.vocab_size)} >= {
        bytes([byte]) for byte in range(256)
    }
    assert bpe.alphabet is None
    assert bpe.decode(bpe.encode("x")) == "x"
    assert len(bpe.encode("\x00")) == 1


def test_bpe_learns_merges_that_shorten_text(bpe: Tokenizer, mixed: str) -> None:
    assert bpe.vocab_size == 300
    assert len(bpe.encode(mixed)) < 0.7 * len(mixed.encode("utf-8"))


def test_a_short_text_gives_fewer_tokens_than_asked_for() -> None:
    assert Tokenizer.train("bpe", ["ab ab"], vocab_size=1000).vocab_size == 258  # bytes, "ab", " ab"


def test_decomposed_hangul_has_the_tokens_of_the_composed(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("\u1112\u1161\u11a8교에") == tokenizer.encode("학교에")


def test_carriage_returns_become_newlines(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("o\r\nn\rn\r\r\n") == tokenizer.encode("o\nn\nn\n\n")


def test_an_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


# Training


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("sizes", [[1], [3, 7, 2], [1000]])
def test_training_does_not_depend_on_how_the_text_is_cut(
    kind: Any, sizes: list[int], mixed: str, cut: Callable[[str, Sequence[int]], list[str]]
) -> None:
    text = mixed * 20
    whole = Tokenizer.train(kind, [text], vocab_size=320)
    assert Tokenizer.train(kind, cut(text, sizes), vocab_size=320).hash == whole.hash


def test_training_is_the_same_in_every_process(mixed: str) -> None:
    code = (
        "import sys; from headwise.text import Tokenizer\n"
        "print(Tokenizer.train('bpe', [bytes.fromhex(sys.argv[1]).decode()] * 300, vocab_size=400).hash)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, mixed.encode().hex()],
        env={**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == Tokenizer.train("bpe", [mixed] * 300, vocab_size=400).hash


def test_training_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of char, bpe; got 'word'"):
        Tokenizer.train("word", ["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"vocab_size must be at least 256.*got 255"):
        Tokenizer.train("bpe", ["a"], vocab_size=255)
    with pytest.raises(ValueError, match="text is empty"):
        Tokenizer.train("char", [])
    with pytest.raises(ValueError, match="single characters in NFC; got 'ab'"):
        Tokenizer.from_alphabet(["ab"])
    with pytest.raises(ValueError, match="single characters in NFC"):
        Tokenizer.from_alphabet(["\r"])


# Streams


@pytest.mark.parametrize("sizes", [[1], [5, 2, 30]])
def test_chunks_encode_as_the_whole(
    tokenizer: Tokenizer, mixed: str, sizes: list[int], cut: Callable[[str, Sequence[int]], list[str]]
) -> None:
    text = mixed * 10
    arrays = list(tokenizer.encode_chunks(cut(text, sizes)))
    assert np.concatenate(arrays).tolist() == tokenizer.encode(text)


def test_chunks_say_where_in_the_whole_text_an_unknown_character_stands() -> None:
    tokenizer = Tokenizer.from_alphabet("ab")
    with pytest.raises(ValueError, match=r"'z' \(U\+007A\) at 5"):
        list(tokenizer.encode_chunks(["aba", "bbz", "a"]))


# Characters outside the vocabulary


def test_unknown_characters_are_named_with_their_places() -> None:
    tokenizer = Tokenizer.train("char", ["abab"])
    with pytest.raises(ValueError, match=r"'z' \(U\+007A\) at 2, 5; '🙂' \(U\+1F642\) at 4 .*--unknown skip"):
        tokenizer.encode("abza🙂z")
    assert tokenizer.encode("abza🙂z", unknown="skip") == [0, 1, 0]
    assert tokenizer.encode("zz", unknown="skip") == []
    with pytest.raises(ValueError, match=r"unknown must be one of error, skip; got 'replace'"):
        tokenizer.encode("ab", unknown="replace")  # type: ignore[arg-type]


def test_a_long_list_of_unknown_characters_is_cut_short() -> None:
    tokenizer = Tokenizer.from_alphabet(" ")
    with pytest.raises(
        ValueError, match=r"26 kinds of character.*'a' .* at 0, 26, 52, …;.*'h' .*and 18 more"
    ) as error:
        tokenizer.encode("abcdefghijklmnopqrstuvwxyz" * 50)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("edge", ["\x00", "\U0010ffff"])
def test_characters_beyond_either_end_of_the_vocabulary_are_unknown(edge: str) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        Tokenizer.from_alphabet("mn").encode(edge)


def test_bytes_that_were_no_text_are_refused_not_encoded(tokenizer: Tokenizer) -> None:
    # What Python makes of a command line argument that is not UTF-8.
    with pytest.raises(ValueError, match=r"'\\udcff' \(U\+DCFF\) at 1"):
        tokenizer.encode("a\udcff")
    assert tokenizer.encode("a\udcff", unknown="skip") == tokenizer.encode("a")


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_decoding_an_id_outside_the_vocabulary_is_an_error(tokenizer: Tokenizer, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"token id {wrong} is outside .* 0 to {tokenizer.vocab_size - 1}"):
        tokenizer.decode([0, wrong])


def test_ids_may_come_from_numpy_and_torch_but_not_as_fractions(tokenizer: Tokenizer, mixed: str) -> None:
    ids = tokenizer.encode(mixed)
    assert tokenizer.decode(np.array(ids, dtype=np.uint16)) == mixed
    assert tokenizer.decode(torch.tensor(ids)) == mixed  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tokenizer.decode([0.5])  # type: ignore[list-item]


# Files


def test_a_saved_tokenizer_is_the_same_again(tokenizer: Tokenizer, mixed: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.from_file(path)
    assert loaded.kind == tokenizer.kind
    assert loaded.hash == tokenizer.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.encode(mixed) == tokenizer.encode(mixed)


def test_another_vocabulary_has_another_hash(tokenizer: Tokenizer) -> None:
    other = Tokenizer.train(tokenizer.kind, ["something else entirely"], vocab_size=300)
    assert other.hash != tokenizer.hash


def test_the_tokenizers_library_reads_the_file_and_agrees(
    tokenizer: Tokenizer, mixed: str, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (mixed, mixed.replace("\n", "\r\n"), " 학교 \n\n", "\u1112\u1161\u11a8교"):
        ids = tokenizer.encode(text)
        assert library.encode(text).ids == ids
        assert library.decode(ids) == normalise(text)


def test_transformers_reads_the_file_and_agrees(tokenizer: Tokenizer, mixed: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert fast.encode(mixed) == tokenizer.encode(mixed)
    assert fast.decode(tokenizer.encode(mixed), clean_up_tokenization_spaces=False) == mixed


def test_the_library_does_not_map_unknown_characters_in_silence(tmp_path: Path) -> None:
    Tokenizer.from_alphabet("ab").save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Exception, match="Missing"):
        library.encode("abz")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"model": {"type": "BPE"}}', b"\xff\xfe", b'{"model": 3}'],
)
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"the tokenizer file .*tokenizer\.json is (damaged|foreign)"):
        Tokenizer.from_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Tokenizer.from_file(tmp_path / "none.json")


def _break(change: Callable[[dict[str, Any]], object], tokenizer: Tokenizer, path: Path) -> Path:
    tokenizer.save(path)
    definition = json.loads(path.read_text(encoding="utf-8"))
    change(definition)
    path.write_text(json.dumps(definition), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"]["vocab"].update({"가": 9}), "do not run from 0 to 1"),
        (lambda d: d["model"]["vocab"].update({"cd": 1}), "'cd' is not a single character"),
        (lambda d: d["model"].update(vocab={}), "vocabulary is empty"),
        (lambda d: d.update(decoder=None), "foreign"),
        (lambda d: d.update(pre_tokenizer=None), "foreign"),
    ],
)
def test_a_character_file_that_cannot_be_right_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = _break(change, Tokenizer.from_alphabet("a"), tmp_path / "t.json")
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_file(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["pre_tokenizer"].update(add_prefix_space=True), "foreign.*without prefix space"),
        (lambda d: d["model"].update(dropout=0.1), "foreign"),
        (lambda d: d.update(normalizer={"type": "Lowercase"}), "foreign"),
        (lambda d: d.update(decoder={"type": "Fuse"}), "foreign"),
        (lambda d: d["model"]["vocab"].update({"!!": d["model"]["vocab"].pop("!")}), "damaged"),
    ],
)
def test_a_bpe_that_could_not_be_undone_is_refused(
    change: Any, message: str, bpe: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_file(_break(change, bpe, tmp_path / "t.json"))


def test_a_word_piece_file_is_foreign(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    other.save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=r"foreign \(model WordPiece.*wanted"):
        Tokenizer.from_file(tmp_path / "t.json")


def test_a_byte_level_bpe_made_elsewhere_is_taken(tmp_path: Path, mixed: str) -> None:
    engine = byte_level_engine([mixed], 280)
    engine.normalizer = None  # type: ignore[assignment]
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)])  # type: ignore[assignment]
    engine.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    engine.add_special_tokens(["<|끝|>"])
    engine.enable_truncation(5)
    engine.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "t.json")
    assert tokenizer.kind == "bpe"
    assert tokenizer.vocab_size == 281
    assert tokenizer.encode("<|끝|>") == [280]
    assert tokenizer.decode(tokenizer.encode(mixed + "<|끝|>")) == mixed + "<|끝|>"


def test_a_full_disk_leaves_the_old_file(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        tokenizer.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["tokenizer.json"]
    assert path.read_text() == "old"
