"""The text of an uptraining, as tokens: that of the parent's run, or one that is read and kept.

Letters: T tokens of a window.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headwise.compress.uptraining_config import UptrainConfig
from headwise.files import replacing_folder
from headwise.hub.subject import OwnSubject, Subject
from headwise.text import Corpus, TokenFile, open_corpus, open_prepared, write_tokens
from headwise.training.checkpoint import file_hash
from headwise.training.run_folder import RunFolder
from headwise.training.trainer import Material

TEXT = "text"

_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a model of any make, as token files know it."""

    vocab_size: int
    hash: str

    @classmethod
    def of(cls, subject: Subject) -> Vocabulary:
        """Return what tells the tokenizer of a model from others."""
        if isinstance(subject, OwnSubject):
            return cls(subject.vocab_size, subject.tokenizer.hash)
        entries = sorted(subject.tokenizer.get_vocab().items())
        return cls(subject.vocab_size, hashlib.sha256(json.dumps(entries).encode()).hexdigest())


def own_text(parent: str, vocabulary: Vocabulary, length: int) -> Material | None:
    """Return the tokens that the parent was trained on and those it was measured on, None if it is no run.

    Raises:
        ValueError: they are damaged or of another tokenizer; nothing was held out.
    """
    folder = RunFolder(parent).tokens
    if not folder.is_dir():
        return None
    prepared = open_prepared(folder)
    if prepared.tokenizer.hash != vocabulary.hash:
        raise ValueError(f"the tokens in {folder} are of another tokenizer; give a text with --data")
    if prepared.validation is None:
        raise ValueError(f"the run in {parent} held out no text to measure on; give a text with --data")
    return _material(prepared.train, prepared.validation, length)


def read_text(subject: Subject, corpus: Corpus, config: UptrainConfig, length: int) -> tuple[_Ids, _Ids]:
    """Return the tokens of a text to learn from, and those at its end to measure on.

    Raises:
        ValueError: as `Corpus.chunks` and `Subject.encode`; too few tokens for a window of each.
    """
    parts = [np.asarray(subject.encode(chunk), dtype=np.int64) for chunk in corpus.chunks()]
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    held_out = min(config.held_out, len(ids) // 10)
    if len(ids) - held_out < length + 1 or held_out < 2:
        raise ValueError(
            f"{corpus.name} has {len(ids):,} tokens, of which {held_out:,} are held out to measure on; a "
            f"window takes {length + 1} and measuring 2, so give more text"
        )
    return ids[:-held_out], ids[-held_out:]


def write_material(folder: Path, parts: tuple[_Ids, _Ids], vocabulary: Vocabulary) -> None:
    """Keep the tokens of a text in the folder of an uptraining, all or nothing."""
    with replacing_folder(folder / TEXT) as temporary:
        for name, ids in zip(("train", "validation"), parts, strict=True):
            write_tokens(temporary / f"{name}.tokens", [ids], vocabulary)


def kept_material(folder: Path, vocabulary: Vocabulary, length: int) -> Material | None:
    """Return what `write_material` kept, None if there is nothing.

    Raises:
        ValueError: it is damaged or of another tokenizer.
    """
    if not (folder / TEXT).is_dir():
        return None
    files = [TokenFile(folder / TEXT / f"{name}.tokens", vocabulary) for name in ("train", "validation")]
    return _material(files[0], files[1], length)


def open_text(config: UptrainConfig) -> Corpus:
    """Return the text that the user names.

    Raises:
        ValueError: none is named; as `open_corpus`.
    """
    if config.data is None:
        raise ValueError(
            "there is no text to learn from, as the parent's folder does not hold the tokens that it was "
            "trained on; give the text that it learned, or some like it, with --data"
        )
    return open_corpus(config.data)


def _material(train: TokenFile, validation: TokenFile, length: int) -> Material:
    if train.count < length + 1:
        raise ValueError(f"{train.path} has {train.count} tokens, and a window takes {length + 1}")
    hashes = {"training tokens": file_hash(train.path), "validation tokens": file_hash(validation.path)}
    return Material(train, validation, length, hashes)
