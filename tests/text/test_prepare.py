from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.text import Corpus, Prepared, Tokenizer, open_prepared, prepare
from headwise.text.prepare import survey

TEXT = "나는 학교에 버스로 갔다. The bus was late, as ever.\n" * 40


def _names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def _decoded(prepared: Prepared) -> tuple[str, str]:
    validation = prepared.validation
    return (
        prepared.tokenizer.decode(prepared.train.tokens),
        prepared.tokenizer.decode(validation.tokens) if validation else "",
    )


# The result


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_the_two_parts_are_the_text(kind: Any, tmp_path: Path) -> None:
    prepared = prepare(
        Corpus.from_text(TEXT), kind, tmp_path / "new" / "folder", block_size=8, vocab_size=280
    )
    train, validation = _decoded(prepared)
    assert train + validation == TEXT
    assert len(train) == int(len(TEXT) * 0.9)
    assert prepared.characters == len(TEXT)
    assert prepared.text_hash == hashlib.sha256(TEXT.encode()).hexdigest()
    assert _names(tmp_path / "new" / "folder") == [
        "corpus.json",
        "tokenizer.json",
        "train.tokens",
        "validation.tokens",
    ]


def test_the_parts_are_encoded_as_if_at_once(tmp_path: Path) -> None:
    text = TEXT * 60  # many pieces
    prepared = prepare(
        Corpus("t", lambda: [[text[:5], text[5:70000], text[70000:]]]), "bpe", tmp_path, block_size=8
    )
    assert prepared.train.tokens.tolist() == prepared.tokenizer.encode(text[: len(text) * 9 // 10])


def test_bpe_learns_from_the_training_part_alone(tmp_path: Path) -> None:
    text = "ab " * 300 + "zq" * 50
    prepared = prepare(Corpus.from_text(text), "bpe", tmp_path, block_size=8)
    assert prepared.tokenizer.hash == Tokenizer.train("bpe", [text[:900]]).hash
    other = prepare(Corpus.from_text(text[:900] + "xw" * 50), "bpe", tmp_path, block_size=8)
    assert other.tokenizer.hash == prepared.tokenizer.hash


def test_the_character_vocabulary_covers_the_validation_part(tmp_path: Path) -> None:
    prepared = prepare(Corpus.from_text("ab" * 50 + "z" * 10), "char", tmp_path, block_size=4)
    assert prepared.tokenizer.alphabet == frozenset("abz")


@pytest.mark.parametrize(
    ("characters", "fraction", "train"),
    [(1_115_394, 0.1, 1_003_854), (20, 0.9, 2), (100, 0.29, 71), (5000, 0.001, 4995), (7, 0.5, 3)],
)
def test_the_split_does_not_suffer_from_rounding(
    characters: int, fraction: float, train: int, tmp_path: Path
) -> None:
    corpus = Corpus.from_text("a" * characters)
    prepared = prepare(corpus, "char", tmp_path, block_size=1, validation_fraction=fraction)
    assert prepared.train.count == train
    assert prepared.validation is not None
    assert prepared.validation.count == characters - train


def test_no_validation_is_none_and_leaves_no_old_file(tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    prepared = prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8, validation_fraction=0)
    assert prepared.validation is None
    assert _decoded(prepared) == (TEXT, "")
    assert "validation.tokens" not in _names(tmp_path)


def test_a_given_tokenizer_is_used(tmp_path: Path) -> None:
    given = Tokenizer.from_alphabet(set(TEXT) | set("XYZ"))
    prepared = prepare(Corpus.from_text(TEXT), given, tmp_path, block_size=8)
    assert prepared.tokenizer.hash == given.hash
    assert prepared.train.tokenizer_hash == given.hash


def test_a_given_tokenizer_that_lacks_characters_is_refused_before_any_work(tmp_path: Path) -> None:
    given = Tokenizer.from_alphabet("ab")
    with pytest.raises(ValueError, match=r"does not fit 'mine': .*'z' \(U\+007A\) at 40"):
        prepare(Corpus.from_text("ab" * 20 + "zz", "mine"), given, tmp_path / "f", block_size=2)
    assert not (tmp_path / "f").exists()


def test_a_survey_tells_length_hash_and_first_places() -> None:
    found = survey(Corpus("t", lambda: [["ab", "ca"], ["d"]]))
    assert found.characters == 7
    assert found.first_seen == {"a": 0, "b": 1, "c": 2, "\n": 4, "d": 6}
    assert found.sha256 == hashlib.sha256(b"abca\n\nd").hexdigest()


# Too short


@pytest.mark.parametrize("length", [1, 64])
def test_a_text_shorter_than_a_block_is_refused(length: int, tmp_path: Path) -> None:
    fits = f"block_size that fits is {length - 1}" if length > 1 else "no block_size fits"
    with pytest.raises(
        ValueError,
        match=rf"training part .* has {length} tokens, but block_size 64 needs at least 65: .*{fits}",
    ):
        prepare(Corpus.from_text("a" * length), "char", tmp_path / "f", block_size=64, validation_fraction=0)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("length", [65, 66])
def test_exactly_one_block_and_one_token_is_enough(length: int, tmp_path: Path) -> None:
    text = "a" * length
    for number, fraction in enumerate((0, None)):  # by default a text too short for two parts is not divided
        folder = tmp_path / str(number)
        prepared = prepare(
            Corpus.from_text(text), "char", folder, block_size=64, validation_fraction=fraction
        )
        assert prepared.train.count == length
        assert prepared.validation is None


@pytest.mark.parametrize(("length", "block_size"), [(640, 64), (649, 65)])
def test_the_validation_part_needs_a_block_too(length: int, block_size: int, tmp_path: Path) -> None:
    corpus = Corpus.from_text("a" * length, "short")
    held_out = prepare(corpus, "char", tmp_path / "a", block_size=length // 10 - 1).validation
    assert held_out is not None
    assert prepare(corpus, "char", tmp_path / "b", block_size=block_size).validation is None
    part, largest = -(-length // 10), -(-length // 10) - 1
    message = (
        rf"the validation part of the text 'short' has {part} tokens, but block_size {block_size} needs at "
        rf"least {block_size + 1}: the largest block_size that fits is {largest}; "
        r".*validation_fraction \(now 0\.1"
    )
    with pytest.raises(ValueError, match=message):
        prepare(corpus, "char", tmp_path / "c", block_size=block_size, validation_fraction=0.1)


def test_a_validation_part_of_nothing_is_said_with_its_numbers(tmp_path: Path) -> None:
    corpus = Corpus.from_text("abcdefghij")
    with pytest.raises(
        ValueError, match="validation part .* has 1 tokens, but block_size 2 .* no block_size fits"
    ):
        prepare(corpus, "char", tmp_path, block_size=2, validation_fraction=0.1)


def test_bpe_lengths_are_counted_in_tokens_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training part .* has \d+ tokens, but block_size 2000 needs"):
        prepare(Corpus.from_text(TEXT), "bpe", tmp_path / "deep" / "f", block_size=2000)
    assert _names(tmp_path) == []


@pytest.mark.parametrize("text", ["", "\ufeff"])
def test_an_empty_text_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.txt"
    path.write_text(text, encoding="utf-8")
    from headwise.text.corpus import read_text

    with pytest.raises(ValueError, match="the text 'e' is empty"):
        prepare(Corpus("e", lambda: [read_text(path)]), "bpe", tmp_path / "f", block_size=2)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1; got 0"),
        ({"block_size": 4, "validation_fraction": 1}, "validation_fraction must be .* below 1; got 1"),
        ({"block_size": 4, "validation_fraction": -0.1}, "validation_fraction must be at least 0"),
        ({"block_size": 4, "validation_fraction": float("nan")}, "validation_fraction"),
    ],
)
def test_arguments_out_of_range_are_errors(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(Corpus.from_text(TEXT), "char", tmp_path, **options)


def test_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind must be one of char, bpe; got 'word'"):
        prepare(Corpus.from_text(TEXT), "word", tmp_path, block_size=4)  # type: ignore[arg-type]


# Reuse


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_the_same_text_and_settings_are_not_encoded_again(kind: Any, tmp_path: Path) -> None:
    first = prepare(Corpus.from_text(TEXT), kind, tmp_path, block_size=8)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in _names(tmp_path)}
    second = prepare(Corpus.from_text(TEXT), kind, tmp_path, block_size=9)
    assert (first.reused, second.reused) == (False, True)
    assert second.tokenizer.hash == first.tokenizer.hash
    assert _decoded(second) == _decoded(first)
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in _names(tmp_path)}


@pytest.mark.parametrize(
    "change",
    [
        {"text": TEXT.replace("버", "비")},
        {"text": TEXT[:-1]},
        {"validation_fraction": 0.2},
        {"validation_fraction": 0.0},
        {"vocab_size": 270},
        {"tokenizer": "char"},
        {"tokenizer": Tokenizer.train("bpe", ["another"], vocab_size=300)},
    ],
)
def test_whatever_changes_the_tokens_makes_them_anew(change: dict[str, Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "tokenizer": "bpe",
        "text": TEXT,
        "vocab_size": 300,
        "validation_fraction": 0.1,
    }

    def run(folder: Path, tokenizer: Any, text: str, **options: Any) -> Prepared:
        return prepare(Corpus.from_text(text), tokenizer, folder, block_size=8, **options)

    run(tmp_path / "a", **settings)
    again = run(tmp_path / "a", **{**settings, **change})
    fresh = run(tmp_path / "b", **{**settings, **change})
    assert not again.reused
    assert again.tokenizer.hash == fresh.tokenizer.hash
    assert again.train.tokens.tolist() == fresh.train.tokens.tolist()
    assert _decoded(again) == _decoded(fresh)
    assert _names(tmp_path / "a") == _names(tmp_path / "b")


@pytest.mark.parametrize("name", ["corpus.json", "tokenizer.json", "train.tokens", "validation.tokens"])
@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_damaged_files_are_made_anew(name: str, damage: str, tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    if damage == "remove":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    again = prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    assert not again.reused
    assert "".join(_decoded(again)) == TEXT


def test_reused_files_must_be_long_enough_too(tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT), "bpe", tmp_path, block_size=8)
    with pytest.raises(ValueError, match="block_size 2000 needs"):
        prepare(Corpus.from_text(TEXT), "bpe", tmp_path, block_size=2000)


def test_the_description_says_what_the_folder_holds(tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT, "bus"), "char", tmp_path, block_size=8)
    description = json.loads((tmp_path / "corpus.json").read_text(encoding="utf-8"))
    assert description["name"] == "bus"
    assert description["characters"] == len(TEXT)
    assert description["tokens"] == {
        "train": len(TEXT) * 9 // 10,
        "validation": len(TEXT) - len(TEXT) * 9 // 10,
    }


@pytest.mark.parametrize("fraction", [0.1, 0.0])
def test_prepared_tokens_can_be_opened_without_their_text(fraction: float, tmp_path: Path) -> None:
    made = prepare(Corpus.from_text(TEXT), "bpe", tmp_path, block_size=8, validation_fraction=fraction)
    found = open_prepared(tmp_path)
    assert _decoded(found) == _decoded(made)
    assert (found.validation is None) == (fraction == 0)
    assert (found.characters, found.text_hash, found.reused) == (made.characters, made.text_hash, True)
    assert found.tokenizer.hash == made.tokenizer.hash


@pytest.mark.parametrize("name", ["corpus.json", "tokenizer.json", "train.tokens", "validation.tokens"])
def test_opening_names_what_is_missing_or_damaged(name: str, tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        open_prepared(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=name):
        open_prepared(tmp_path)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("[]", "corpus.json is damaged: it should hold one JSON object"),
        ("{}", "corpus.json is damaged: it lacks 'validation_fraction'"),
        ('{"validation_fraction": 0.1, "tokens": {"train": 1}}', "corpus.json does not belong to"),
    ],
)
def test_a_description_that_is_not_that_of_the_files_is_refused(
    content: str, wanted: str, tmp_path: Path
) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    (tmp_path / "corpus.json").write_text(content)
    with pytest.raises(ValueError, match=wanted):
        open_prepared(tmp_path)


# Errors on the way


class _Changing:
    """Documents that are different at each reading."""

    def __init__(self, *texts: str) -> None:
        self._texts = iter(texts)

    def __call__(self) -> Iterator[list[str]]:
        yield [next(self._texts)]


@pytest.mark.parametrize("later", [TEXT + "more", TEXT[:-9], TEXT.replace("a", "e")])
def test_a_text_that_changes_while_it_is_read_is_an_error(later: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'log' changed while it was being read"):
        prepare(Corpus("log", _Changing(TEXT, later)), "char", tmp_path / "f", block_size=8)
    assert not (tmp_path / "f").exists()


def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    (tmp_path / "mine.txt").write_text("keep")
    before = {name: (tmp_path / name).read_bytes() for name in _names(tmp_path)}
    with pytest.raises(ValueError, match="changed while"):
        prepare(
            Corpus("log", _Changing(TEXT + "x", TEXT + "y")),
            "bpe",
            tmp_path,
            block_size=8,
            validation_fraction=0,
        )
    assert before == {name: (tmp_path / name).read_bytes() for name in _names(tmp_path)}


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no file size limit here")
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError, match="File too large"):
            prepare(Corpus.from_text(TEXT), "char", tmp_path / "f", block_size=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not (tmp_path / "f").exists()


def test_a_crash_between_the_files_is_not_taken_for_a_whole_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    other = TEXT.replace("버", "교").replace("교", "버")  # the same length
    real = os.replace
    calls: list[str] = []

    def crash(source: Any, target: Any) -> None:
        calls.append(str(target))
        if len(calls) == 2:
            raise OSError("power cut")
        real(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        prepare(Corpus.from_text(other), "char", tmp_path, block_size=8)
    monkeypatch.undo()
    again = prepare(Corpus.from_text(TEXT), "char", tmp_path, block_size=8)
    assert not again.reused
    assert "".join(_decoded(again)) == TEXT
