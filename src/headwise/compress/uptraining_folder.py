"""Uptraining from folder to folder, with exact resume and controls.

| name | what |
| --- | --- |
| the model's own files | the uptrained model with the best loss on held-out text |
| `uptrain.json` | what it was begun with |
| `metrics.jsonl` | every step and evaluation |
| `outcome.json` | the outcome, once finished |
| `control-parent/`, `control-scratch/` | the controls, each as such a folder |
| `text/` | the tokens of a text that was given |
| `checkpoints/` | what resume needs, until it is finished |
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import nn

from headwise.compress.uptraining import check_learnable, learner_of
from headwise.compress.uptraining_config import SETTINGS, Control, UptrainConfig
from headwise.compress.uptraining_plan import parent_of, recipes, wanted_tokens, window
from headwise.compress.uptraining_text import (
    Vocabulary,
    kept_material,
    open_text,
    own_text,
    read_text,
    write_material,
)
from headwise.files import check_new_folder, write_json
from headwise.hub.dtypes import in_dtype
from headwise.hub.export import save_transformers
from headwise.hub.origin import head_numbers, write_origin
from headwise.hub.subject import OwnSubject, Subject, open_subject, require_causal
from headwise.hub.surgery import next_token_logits
from headwise.model import GPT, save_model
from headwise.model.device import pick_device
from headwise.text import sequential_windows
from headwise.training.checkpoint import file_hash, newest_checkpoint
from headwise.training.config import TrainingConfig
from headwise.training.evaluation import evaluate_batches
from headwise.training.metrics import read_metrics
from headwise.training.observer import Observer
from headwise.training.run_data import check_identity
from headwise.training.run_folder import RunFolder
from headwise.training.trainer import Material, Trainer, own_random_numbers

OUTCOME = "outcome.json"
FEW_STEPS = 50
"""Below so many the first steps, which shake a model, are most of them."""


@dataclass(frozen=True)
class Learnt:
    """What one model learned."""

    loss_before: float
    """Over all held-out tokens, in nats per token."""
    loss_after: float
    """The same, of the best weights."""
    best_step: int
    steps: int
    tokens: int
    """Tokens learned from."""
    seconds: float
    """Time spent in steps."""
    curve: list[tuple[int, float]]
    """Tokens learned from, and the loss on a fixed part of the held-out tokens, in nats per token."""


@dataclass(frozen=True)
class UptrainOutcome:
    """What an uptraining brought, and what its controls did."""

    folder: Path
    parent: str
    """Folder or name of the model that was learned from."""
    parent_loss: float
    """Of the parent as it was, over all held-out tokens, in nats per token."""
    held_out_tokens: int
    original_tokens: int | None
    """Those that the parent was trained on; None where that is not known."""
    child: Learnt
    controls: dict[str, Learnt]
    """`parent`: the parent trained on; `scratch`: the child's shape from random weights; as many tokens."""

    @property
    def share(self) -> float | None:
        """The tokens learned from as a share of those that the parent was trained on."""
        return None if self.original_tokens is None else self.child.tokens / self.original_tokens

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"folder": str(self.folder), "share": self.share}


def uptrain_folder(
    child: Path | str,
    out: Path | str,
    config: UptrainConfig | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> UptrainOutcome:
    """Let the model in a folder learn on, and write it to the folder `out`, in the same kind of folder.

    On the CPU a resumed uptraining gives, bit for bit, what it would have given without the stop. A finished
    one is only told again; controls may be added to it.

    Args:
        child: the model whose heads were merged or removed: a folder of ours, or one of Hugging Face.
        out: a new folder, or with `resume` that of the uptraining.
        config: what is said about it; when resuming, nothing or the same, but for `parent`, `device` and
            more `controls`.
        resume: go on from the newest whole checkpoint.
        observer: hears what happens.

    Raises:
        ValueError: anything wrong with folders, text or settings, before any work is done.
        NonFiniteError: (a ValueError) a loss or gradient is not finite; the last good checkpoint is kept.
        Interrupted: (a KeyboardInterrupt) Ctrl-C; the step was finished and saved.
        OSError: a file cannot be read or written; what was saved before is kept.
    """
    out, child, config = Path(out), str(child), config or UptrainConfig()
    observer = observer or Observer()
    if resume:
        config = UptrainConfig.read(out).resumed_with(config)
    else:
        check_free(out)
    parent = parent_of(child, config)
    tokens, original = wanted_tokens(parent, config)
    device = pick_device(config.device)
    subject, teacher = (open_subject(source, device, torch.float32) for source in (child, parent))
    vocabulary = Vocabulary.of(subject)
    if Vocabulary.of(teacher) != vocabulary:
        raise ValueError(
            f"{child} and {parent} have different tokenizers, so one cannot learn from the other; give the "
            "model that the child was made of as --parent"
        )
    for opened in (subject, teacher):
        require_causal(opened, "which is what uptraining learns")
        check_learnable(opened.model)
        _check_finite(opened)
    if isinstance(subject, OwnSubject):
        subject.unknown = config.unknown
    length = window(subject, config)
    recipe, from_scratch = recipes(config, parent, isinstance(subject, OwnSubject), tokens, length)
    with ExitStack() as stack:
        material = _material(out, parent, subject, vocabulary, config, length, stack)
        if not resume and recipe.max_steps < FEW_STEPS:
            observer.on_message(_few(recipe, length))
        settings = [recipe.model_dump(exclude={"device"}), config.kl, length]
        about = {
            "child": _weights_hash(child),
            "parent": _weights_hash(parent),
            "recipe": hashlib.sha256(json.dumps(settings).encode()).hexdigest(),
        }
        material = replace(material, identity=material.identity | about)
        pieces: list[tuple[str, Path, nn.Module, TrainingConfig, nn.Module | None]] = [
            ("child", out, subject.model, recipe, teacher.model)
        ]
        if "parent" in config.controls:
            pieces.append(("parent trained on", out / "control-parent", teacher.model, recipe, None))
        if "scratch" in config.controls:
            pieces.append(("from scratch", out / "control-scratch", subject.model, from_scratch, None))
        learnt = []
        for number, (name, folder, model, how, taught_by) in enumerate(pieces, 1):
            if len(pieces) > 1:
                observer.on_run(name, how.seed, number, len(pieces))
            start = _fresh(model, how.seed) if name == "from scratch" else model
            learnt.append(
                _learn(start, subject, folder, how, taught_by, config.kl, material, observer, device)
            )
        write_origin(out, child, head_numbers(child), parent)
        held_out = _loss(teacher.model, material, recipe)
        return UptrainOutcome(
            out,
            parent,
            held_out[0],
            held_out[1],
            original,
            learnt[0],
            dict(
                zip([name for name in get_args(Control) if name in config.controls], learnt[1:], strict=True)
            ),
        )


def _few(recipe: TrainingConfig, length: int) -> str:
    size = recipe.windows_per_step * length
    return (
        f"steps of {size:,} tokens, of which there are {recipe.max_steps}: fewer than {FEW_STEPS} seldom "
        "help, as a child that lost little is first shaken by learning; give "
        f"{FEW_STEPS * size:,} tokens or more (--tokens), fewer to a step (--batch-size), or lower rates "
        "(--learning-rate). If no evaluation is better than the start, the start is kept"
    )


def _check_finite(subject: Subject) -> None:
    """Raise ValueError for weights that no loss can come of."""
    for name, weight in subject.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(
                f"{subject.name} has weights that are not finite (NaN or infinite; the first are in {name}): "
                "it is damaged, so take another copy, or make it anew"
            )


def check_free(out: Path) -> None:
    """Raise ValueError unless there is nothing at the folder of a new uptraining, and it can be made."""
    if (out / SETTINGS).is_file():
        raise ValueError(
            f"{out} already holds an uptraining; go on with it with --resume, or give another folder"
        )
    check_new_folder(out)


def _material(
    out: Path,
    parent: str,
    subject: Subject,
    vocabulary: Vocabulary,
    config: UptrainConfig,
    length: int,
    stack: ExitStack,
) -> Material:
    """Return the text as tokens, and hold the folder from here on."""
    folder = RunFolder(out)
    found = kept_material(out, vocabulary, length)
    if found is None and config.data is None:
        found = own_text(parent, vocabulary, length)
    parts = None if found is not None else read_text(subject, open_text(config), config, length)
    stack.enter_context(folder.alone())
    folder.sweep()
    config.write(out)
    if parts is not None:
        write_material(out, parts, vocabulary)
        found = kept_material(out, vocabulary, length)
    return cast(Material, found)


def _learn(
    model: nn.Module,
    subject: Subject,
    out: Path,
    recipe: TrainingConfig,
    parent: nn.Module | None,
    kl: float,
    material: Material,
    observer: Observer,
    device: torch.device,
) -> Learnt:
    """Let one model learn in a folder, go on with it, or find that it is done."""
    folder = RunFolder(out)
    done = out / OUTCOME
    if done.is_file():
        return _read(done, material.identity)
    out.mkdir(exist_ok=True)
    folder.sweep()
    before = _loss(model, material, recipe)[0]
    found = newest_checkpoint(folder.checkpoints, observer.on_message)
    learning = copy.deepcopy(model)
    with own_random_numbers(device):
        torch.manual_seed(recipe.seed)
        learner = learner_of(learning, recipe, parent, kl)
        trainer = Trainer(learner, material, folder, observer, keep=lambda: _keep(out, learning, subject))
        if found is not None:
            trainer.restore(*found)
        trainer.run()
    progress = trainer.progress
    kept = open_subject(out, device, torch.float32).model
    records = [record for record in read_metrics(out) if record["event"] == "validation"]
    size = recipe.windows_per_step * material.block_size
    learnt = Learnt(
        before,
        _loss(kept, material, recipe)[0],
        progress.best_step,
        progress.step,
        trainer.tokens,
        progress.seconds,
        [(record["step"] * size, record["loss"]) for record in records],
    )
    write_json(done, asdict(learnt) | {"identity": material.identity})
    shutil.rmtree(folder.checkpoints)
    return learnt


def _read(path: Path, identity: dict[str, str]) -> Learnt:
    """Return what was learned; raise ValueError if it was of other models or another text."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        before = dict(values.pop("identity", identity))
        learnt = Learnt(**values | {"curve": [(tokens, loss) for tokens, loss in values["curve"]]})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    check_identity(before, identity)
    return learnt


def _loss(model: nn.Module, material: Material, recipe: TrainingConfig) -> tuple[float, int]:
    """Return the loss over all held-out tokens, and how many they are."""
    windows = sequential_windows(cast(Any, material.validation), material.block_size, recipe.batch_size)
    found = evaluate_batches(model, windows, partial(next_token_logits, model))
    return found.loss, found.tokens


def _fresh(model: nn.Module, seed: int) -> nn.Module:
    """Return a model of the same shape with random weights."""
    parameter = next(model.parameters())
    with own_random_numbers(parameter.device):
        torch.manual_seed(seed)
        made = GPT(model.config) if isinstance(model, GPT) else cast(Any, type(model))(model.config)
    return cast(nn.Module, made.to(parameter))


def _keep(out: Path, model: nn.Module, subject: Subject) -> None:
    """Write a model in the kind of folder, and the dtype, of the child; each file is replaced whole."""
    model = in_dtype(model, subject.stored_dtype)
    if isinstance(model, GPT) and isinstance(subject, OwnSubject):
        save_model(out, model, subject.tokenizer)
        return
    with tempfile.TemporaryDirectory(prefix=".model.", suffix=".tmp", dir=out) as temporary:
        made = Path(temporary) / "model"
        save_transformers(made, model, subject.tokenizer)
        for path in sorted(made.iterdir()):
            path.replace(out / path.name)


def _weights_hash(source: str) -> str:
    """Return what tells the weights of a folder from others; for a name, the name."""
    files = sorted(Path(source).glob("*.safetensors")) if Path(source).is_dir() else []
    if not files:
        return source
    return hashlib.sha256("".join(file_hash(path) for path in files).encode()).hexdigest()
