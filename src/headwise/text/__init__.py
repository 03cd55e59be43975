"""Text to token ids and back: tokenizers, corpora of any size, checked token files, batches."""

from headwise.text.batches import Batches, sequential_windows
from headwise.text.corpus import Corpus, open_corpus
from headwise.text.normal import normalise
from headwise.text.prepare import Prepared, open_prepared, prepare
from headwise.text.stream import TextStream
from headwise.text.token_file import TokenFile, write_tokens
from headwise.text.tokenizer import Tokenizer

__all__ = [
    "Batches",
    "Corpus",
    "Prepared",
    "TextStream",
    "TokenFile",
    "Tokenizer",
    "normalise",
    "open_corpus",
    "open_prepared",
    "prepare",
    "sequential_windows",
    "write_tokens",
]
