"""The tokens of a run: made once, found again when it is resumed, and proven to be the same."""

from __future__ import annotations

import json
from collections.abc import Callable

from headwise.text import Prepared, TokenFile, Tokenizer, open_corpus, prepare
from headwise.text.prepare import survey
from headwise.training.checkpoint import file_hash
from headwise.training.config import RunConfig
from headwise.training.run_folder import RunFolder


def prepare_run(config: RunConfig, folder: RunFolder) -> Prepared:
    """Read the text that `config.data` names and write its tokens into the run folder.

    Raises:
        ValueError: the text is missing, empty, too short for a block, or not UTF-8.
    """
    return prepare(
        open_corpus(config.data.data),
        config.data.tokenizer,
        folder.tokens,
        block_size=config.model.block_size,
        validation_fraction=config.data.validation_fraction,
        vocab_size=config.data.vocab_size,
    )


def reopen(config: RunConfig, folder: RunFolder, tell: Callable[[str], None]) -> Prepared:
    """Open the tokens that a run has made for itself.

    The text is read again only to see that it is still the same; where it is gone, that is told.

    Raises:
        ValueError: the text has changed, or a token file is damaged or of another tokenizer.
        OSError: a token file is missing.
    """
    made = json.loads((folder.tokens / "corpus.json").read_text(encoding="utf-8"))
    if config.data.data != "-":
        try:
            now = survey(open_corpus(config.data.data)).sha256
        except (OSError, ValueError) as error:
            tell(f"going on with the tokens in {folder.tokens}, as the text can no longer be read: {error}")
        else:
            if now != made["text_hash"]:
                raise ValueError(
                    f"the text {config.data.data!r} has changed since this run began; "
                    "start a new run for the new text, or put the old one back to go on"
                )
    tokenizer = Tokenizer.from_file(folder.tokens / "tokenizer.json")
    train = TokenFile.open(folder.tokens / "train.tokens", tokenizer)
    validation = None
    if made["validation_fraction"]:
        validation = TokenFile.open(folder.tokens / "validation.tokens", tokenizer)
    return Prepared(tokenizer, train, validation, made["characters"], made["text_hash"], reused=True)


def identity(prepared: Prepared) -> dict[str, str]:
    """What must stay the same from a run's first step to its last, as hashes."""
    hashes = {"tokenizer": prepared.tokenizer.hash, "training tokens": file_hash(prepared.train.path)}
    if prepared.validation is not None:
        hashes["validation tokens"] = file_hash(prepared.validation.path)
    return hashes


def check_identity(before: dict[str, str], now: dict[str, str]) -> None:
    """Compare the `identity` of a run when it was saved with that of now.

    Raises:
        ValueError: tokenizer or tokens are not those the run began with.
    """
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    if changed:
        raise ValueError(
            f"cannot resume: {' and '.join(changed)} changed since this run began; put the run folder's own "
            "files back or start a new run"
        )
