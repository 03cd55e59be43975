"""The tokens of a run: made once, found again when it is resumed, and proven to be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headwise.text import Corpus, Prepared, TokenFile, open_corpus, open_prepared, prepare
from headwise.text.prepare import USUAL_FRACTION, TooShortError, survey
from headwise.training.checkpoint import file_hash
from headwise.training.config import RunConfig
from headwise.training.run_folder import RunFolder


def prepare_runs(configs: Sequence[RunConfig], folder: Path) -> Prepared:
    """Turn the text of runs that share it into tokens in `folder`, or find them there.

    Raises:
        ValueError: the text is missing, empty, too short for the longest block, or not UTF-8; or too short to
            hold some of it out although a recipe says something about evaluations.
        OSError: it cannot be read, or the tokens not be written.
    """
    data = configs[0].data
    fraction, asked = data.validation_fraction, []
    if fraction is None:
        asked = list(dict.fromkeys(said for config in configs for said in config.training.about_evaluations))
    try:
        return prepare(
            open_corpus(data.data),
            data.tokenizer,
            folder,
            block_size=max(config.model.block_size for config in configs),
            validation_fraction=USUAL_FRACTION if asked else fraction,  # None would do without, if need be
            vocab_size=data.vocab_size,
        )
    except TooShortError as error:
        if not asked:
            raise
        raise ValueError(f"{', '.join(asked)} needs held-out text, but {error}") from error


def reopen(config: RunConfig, folder: RunFolder, tell: Callable[[str], None]) -> Prepared:
    """Open the tokens that a run has made for itself.

    The text is read again only to see that it is still the same; where it is gone, that is told.

    Raises:
        ValueError: the text has changed, or a token file is damaged or of another tokenizer.
        OSError: a token file is missing.
    """
    prepared = open_prepared(folder.tokens)
    if config.data.data != "-":
        try:
            now = survey(open_corpus(config.data.data)).sha256
        except (OSError, ValueError) as error:
            tell(f"going on with the tokens in {folder.tokens}, as the text can no longer be read: {error}")
        else:
            check_text(config, folder, prepared.text_hash, now)
    return prepared


def check_text(config: RunConfig, folder: RunFolder, before: str, now: str) -> None:
    """Compare the hash of the text a run began with to that of the text now.

    Raises:
        ValueError: it is another text.
    """
    if before != now:
        raise ValueError(
            f"the text {config.data.data!r} has changed since the run in {folder.path} began; put the old "
            "one back to go on, or choose another --out for the new one"
        )


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


def held_out_text(folder: Path | str, *, most: int = 2_000_000) -> Corpus | None:
    """Return the text that a run held out from training, or None if the folder is no run's or held out none.

    most: tokens of it to read.

    Raises:
        ValueError: the run's tokens are damaged.
    """
    tokens = RunFolder(folder).tokens
    if not tokens.is_dir():
        return None
    prepared = open_prepared(tokens)
    if prepared.validation is None:
        return None
    text = prepared.tokenizer.decode(prepared.validation.tokens[:most].tolist())
    return Corpus.from_text(text, f"what {folder} held out")


def training_tokens(folder: Path | str) -> TokenFile | None:
    """Return the tokens that a run learned from, or None if the folder is no run's.

    Raises:
        ValueError: the run's tokens are damaged.
    """
    tokens = RunFolder(folder).tokens
    return open_prepared(tokens).train if tokens.is_dir() else None
