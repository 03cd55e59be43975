"""Opening Hugging Face folders and names, without running code from them.

What is in Hugging Face's cache is taken from there; the network is asked only for what is not.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError

from headwise.hub.configs import SENSELESS, refuse_endless, refuse_other_size, refuse_sizes, stored_numbers
from headwise.hub.dtypes import stored_dtype
from headwise.hub.library import transformers
from headwise.hub.pretrained import PretrainedSubject
from headwise.hub.subject import Subject
from headwise.memory import short_of_memory

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "tekken.json",
)

T = TypeVar("T")


def open_pretrained(source: str, device: str | torch.device, dtype: torch.dtype | None) -> Subject:
    """Open a Hugging Face folder or name; raises as `open_subject`."""
    model, stored = load_pretrained(source, dtype)
    subject = PretrainedSubject(model.to(device), _tokenizer(transformers(), source), source)
    subject.stored_dtype = stored
    return subject


def load_pretrained(
    source: str, dtype: torch.dtype | None, bare: str = "AutoModel"
) -> tuple[Any, torch.dtype]:
    """Return the model of a Hugging Face folder or name, on the CPU and in eval mode, and its own dtype.

    dtype: of the weights; None for that in which they are stored. bare: the class for a config that names
    none. Raises as `open_subject`.
    """
    library = transformers()
    config = _config(library, source)
    _refuse_quantised(config, source)
    kind = _model_class(library, config, source, bare)
    with _reading_weights(source):
        stored = stored_numbers(Path(source))
    refuse_other_size(kind, config, source, stored)
    with _reading_weights(source):
        model, loaded = _nearest(
            source,
            lambda **where: kind.from_pretrained(
                source,
                config=config,
                dtype="auto" if dtype is None else dtype,
                use_safetensors=True,
                output_loading_info=True,
                **where,
            ),
        )
    missing = sorted(name for name in loaded["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(
            f"the weights of {source} lack {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}, which "
            f"{kind.__name__} has; config.json and weights must come from the same model"
        )
    own = config.dtype or stored_dtype(Path(source)) or model.dtype
    return model.eval(), own


@contextmanager
def _reading_weights(source: str) -> Iterator[None]:
    """Say in our words what reading weights comes to."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{source} has no weights in safetensors files that can be read ({_line(error)}); other formats "
            "run code when they are read, so convert them first"
        ) from error
    except (SafetensorError, *SENSELESS) as error:
        if short_of_memory(error):
            raise
        raise ValueError(
            f"the weights of {source} cannot be read as config.json describes them ({_line(error)}); a file "
            "is damaged or only half there, or they are not of the same model: fetch it again"
        ) from error


def _nearest(source: str, load: Callable[..., T]) -> T:
    """Load from the folder or the cache, else from the network if there is one; raises OSError."""
    try:
        with quiet_library():
            return load(local_files_only=True)
    except OSError:
        if Path(source).is_dir() or not _online():
            raise
    return load(local_files_only=False)


def _online() -> bool:
    """Whether Hugging Face can be asked at all, found out before it is asked again and again."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def _config(library: Any, source: str) -> Any:
    values = _asked(source, lambda **where: library.PreTrainedConfig.get_config_dict(source, **where)[0])
    refuse_endless(values, source)
    config = _asked(
        source, lambda **where: library.AutoConfig.from_pretrained(source, trust_remote_code=False, **where)
    )
    refuse_sizes(config, source)
    return config


def _asked(source: str, load: Callable[..., T]) -> T:
    """Load a config, or what it is made of; raises as `open_subject`."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        return _nearest(source, load)
    except OSError as error:
        raise FileNotFoundError(
            f"there is no folder {source}, and no model of that name could be had from Hugging Face "
            f"({_line(error)}); check the name and the connection"
        ) from error
    except (StrictDataclassError, *SENSELESS) as error:
        if "remote_code" in str(error) or "auto_map" in _raw_config(source):
            raise ValueError(
                f"{source} needs code from its repository, which headwise does not run; load it yourself "
                "with trust_remote_code=True and use hub.Subject.of(model, tokenizer)"
            ) from error
        raise ValueError(f"{source} cannot be read by transformers: {_line(error)}") from error


def _raw_config(source: str) -> dict[str, Any]:
    path = Path(source) / "config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _refuse_quantised(config: Any, source: str) -> None:
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
    raise ValueError(
        f"{source} holds weights quantised with {method}, in which no head has a W_O that could be read; "
        "open the original model, or load it yourself and look at its attention with heads.observe(model)"
    )


def _model_class(library: Any, config: Any, source: str, bare: str) -> Any:
    """Return the class that the checkpoint was saved from."""
    for name in config.architectures or ():
        kind = getattr(library, name, None)
        if isinstance(kind, type) and issubclass(kind, library.PreTrainedModel):
            return kind
    if config.architectures:
        raise ValueError(
            f"{source} is a {config.architectures[0]}, which transformers {library.__version__} does not "
            "know; install a newer one, or load it yourself and use hub.Subject.of(model, tokenizer)"
        )
    return getattr(library, bare)


def _tokenizer(library: Any, source: str) -> Any:
    advice = "put its tokenizer.json there, or load one yourself and use hub.Subject.of(model, tokenizer)"
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"{source} has no tokenizer; {advice}")
    try:
        return _nearest(
            source,
            lambda **where: library.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **where),
        )
    except Exception as error:  # which is what `tokenizers` itself raises for a damaged file, no subclass
        raise ValueError(f"the tokenizer of {source} cannot be read ({_line(error)}); {advice}") from error


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep the library from drawing progress bars over ours, where nothing is downloaded, and from reports.

    What its reports say of missing weights is an error of ours.
    """
    logging = transformers().utils.logging
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _line(error: BaseException) -> str:
    """Return the first line of what an error says, and the next where that one only announces it."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {more[0].strip()}" if more and first.endswith(":") else first
