"""What a `tokenizers` file must hold to be used here, how one is built, and the bytes behind each token."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

Kind = Literal["char", "bpe"]

_ANY_CHARACTER = r"[\s\S]"


def character_engine(alphabet: list[str]) -> tokenizers.Tokenizer:
    """Build a character tokenizer; ids follow the order of `alphabet`."""
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    # No single character equals this name, so the engine refuses unknown characters instead of mapping them.
    engine = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    engine.normalizer = _normalizer()
    engine.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_ANY_CHARACTER), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def byte_level_engine(pieces: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Learn a byte-level BPE of at most `vocab_size` tokens from normalised text."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(pieces, trainer)
    engine.normalizer = _normalizer()
    return engine


def kind_of(definition: dict[str, Any], source: str) -> Kind:
    """Say whether a parsed `tokenizers` file is a character vocabulary or a byte-level BPE.

    Raises:
        ValueError: neither, or one whose encoding could not be undone; `source` names it.
    """
    model = definition.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{source} is damaged: it has no model")
    found = model.get("type")
    before = definition.get("pre_tokenizer") or {}
    decoder = (definition.get("decoder") or {}).get("type")
    normalizer = definition.get("normalizer")
    steps = before.get("pretokenizers", [before])
    lossy = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    reversible = normalizer in (None, {"type": "NFC"}, _normalizer_in_a_file()) and not any(
        map(model.get, lossy)
    )
    if found == "WordLevel" and before.get("pattern") == {"Regex": _ANY_CHARACTER} and decoder == "Fuse":
        return "char"
    if (
        found == "BPE"
        and reversible
        and decoder == "ByteLevel"
        and any(step.get("type") == "ByteLevel" for step in steps)
        and not any(step.get("add_prefix_space") for step in steps)
    ):
        return "bpe"
    raise ValueError(
        f"{source} is foreign (model {found}, pre-tokenizer {before.get('type')}, decoder {decoder}), "
        "but wanted is a character vocabulary or a byte-level BPE without prefix space"
    )


def load_engine(text: str, source: str) -> tokenizers.Tokenizer:
    """Load a `tokenizers` file from its text.

    Raises:
        ValueError: the library cannot read it.
    """
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{source} is damaged: {error}") from error


def bytes_of_tokens(engine: tokenizers.Tokenizer, kind: Kind, source: str) -> list[bytes]:
    """Return the UTF-8 bytes of every token, by id.

    Raises:
        ValueError: ids with gaps, a character token of several characters, or a byte without a token.
    """
    vocabulary: dict[str, int] = engine.get_vocab(with_added_tokens=True)
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[name] for name in names] != list(range(len(names))):
        raise ValueError(f"{source} is damaged: its token ids do not run from 0 to {len(names) - 1}")
    if kind == "char":
        if not names:
            raise ValueError(f"{source} is damaged: its vocabulary is empty")
        longest = max(names, key=len)
        if len(longest) != 1:
            raise ValueError(f"{source} is damaged: {longest!r} is not a single character")
        return [name.encode("utf-8") for name in names]
    added = {token.content for token in engine.get_added_tokens_decoder().values()}
    byte_of = byte_of_symbol()
    if not byte_of.keys() <= vocabulary.keys():
        raise ValueError(f"{source} is damaged: a byte-level BPE needs a token for each of the 256 bytes")
    try:
        return [
            name.encode("utf-8") if name in added else bytes(byte_of[symbol] for symbol in name)
            for name in names
        ]
    except KeyError as error:
        raise ValueError(f"{source} is damaged: {error} is not a byte-level symbol") from error


def _normalizer() -> normalizers.Normalizer:
    """The text rule of `headwise.text.normal`, for other programs that load the file."""
    return normalizers.Sequence(
        [normalizers.Replace("\r\n", "\n"), normalizers.Replace("\r", "\n"), normalizers.NFC()]
    )


@cache
def _normalizer_in_a_file() -> Any:
    return json.loads(character_engine(["a"]).to_str())["normalizer"]


def byte_of_symbol() -> dict[str, int]:
    """The byte-level alphabet of GPT-2.

    A visible Latin-1 character stands for its own byte; the other bytes follow in order from U+0100.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    symbols = {chr(byte): byte for byte in visible}
    symbols.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return symbols
