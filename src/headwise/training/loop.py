"""A run: what it is made of, begun or resumed, and what came out of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from headwise.model import GPT, GPTConfig, save_model
from headwise.model.device import pick_device
from headwise.model.folder import load_weights
from headwise.text import Prepared
from headwise.training.checkpoint import MODEL, newest_checkpoint
from headwise.training.config import RunConfig
from headwise.training.evaluation import bits_per_byte, evaluate
from headwise.training.learner import Learner
from headwise.training.metrics import tokens_per_second
from headwise.training.observer import Observer
from headwise.training.run_data import identity, prepare_runs, reopen
from headwise.training.run_folder import RunFolder, TrainResult
from headwise.training.tensorboard import check_tensorboard
from headwise.training.trainer import Material, Trainer, own_random_numbers


def train(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    prepared: Prepared | None = None,
) -> TrainResult:
    """Train a model in the folder `out`, which becomes a model folder (best weights) and can be resumed.

    A resumed run on the CPU gives, bit for bit, what it would have given without the stop. `max_steps` may be
    changed when resuming; the learning rate then follows the new schedule from the step reached. A run
    that was finished is only evaluated again.

    Args:
        config: the run; when resuming, the same but for the fields in `run_folder.CHANGEABLE`.
        out: a new folder, or with `resume` that of the run.
        resume: continue from the newest whole checkpoint.
        observer: hears what happens.
        prepared: the text as tokens, when several runs share it; otherwise the run makes its own.

    Raises:
        ValueError: anything wrong with folder, text or configuration, before any work is done.
        NonFiniteError: (a ValueError) a loss or gradient is not finite; the last good checkpoint is kept.
        Interrupted: (a KeyboardInterrupt) Ctrl-C; the step was finished and saved.
        OSError: a file cannot be read or written, a full disk for instance; what was saved before is kept.
    """
    observer = observer or Observer()
    folder = RunFolder(out)
    device = check_machine(config)
    with ExitStack() as stack:
        return _train(config, folder, device, resume, observer, prepared, stack)


def _train(
    config: RunConfig,
    folder: RunFolder,
    device: torch.device,
    resume: bool,
    observer: Observer,
    prepared: Prepared | None,
    stack: ExitStack,
) -> TrainResult:
    """Do what `train` does; `stack` lets go of the folder afterwards."""
    found = None
    if resume:
        for change in folder.check_resumable(config):
            observer.on_message(change)
        stack.enter_context(folder.alone())
        folder.sweep()
        found = newest_checkpoint(folder.checkpoints, observer.on_message)
        if found is None:
            observer.on_message("there is no checkpoint yet; starting from the first step")
        prepared = prepared or reopen(config, folder, observer.on_message)
    else:
        folder.check_free()
        prepared = prepared or prepare_runs([config], folder.tokens)
    idle = config.training.about_evaluations if prepared.validation is None else []
    if idle:
        raise ValueError(f"{', '.join(idle)} has no effect, as no text is held out for evaluations")
    if not resume:
        stack.enter_context(folder.alone())
    with own_random_numbers(device):
        torch.manual_seed(config.training.seed)
        shape = GPTConfig(**config.model.model_dump(), vocab_size=prepared.tokenizer.vocab_size)
        model = GPT(shape).to(device)
        material = Material(prepared.train, prepared.validation, shape.block_size, identity(prepared))
        tokenizer = prepared.tokenizer
        trainer = Trainer(
            Learner(model, config.training),
            material,
            folder,
            observer,
            keep=lambda: save_model(folder.path, model, tokenizer),
        )
        if found:
            trainer.restore(*found)
        folder.write_config(config)
        folder.result.unlink(missing_ok=True)  # of the run before it was extended
        trainer.run()
    result = _result(trainer, model, prepared)
    folder.write_result(result)
    return result


def _result(trainer: Trainer, model: GPT, prepared: Prepared) -> TrainResult:
    """Evaluate the best weights on the whole validation split."""
    load_weights(trainer.folder.path / MODEL, model)
    progress, validation, evaluation, bits = trainer.progress, prepared.validation, None, None
    if validation is not None:
        evaluation = evaluate(model, validation)
        bits = bits_per_byte(evaluation, validation, prepared.tokenizer)
    return TrainResult(
        folder=trainer.folder.path,
        val_loss=evaluation.loss if evaluation else None,
        bits_per_byte=bits,
        validation_tokens=evaluation.tokens if evaluation else 0,
        best_step=progress.best_step,
        steps=progress.step,
        stopped_early=progress.step < trainer.recipe.max_steps,
        parameters=model.num_parameters(),
        tokens=trainer.tokens,
        seconds=progress.seconds,
        tokens_per_second=tokens_per_second(trainer.tokens, progress.seconds),
        device=str(trainer.device),
        text_hash=prepared.text_hash,
    )


def check_machine(config: RunConfig) -> torch.device:
    """The device of a run, once it is clear that this machine has what the run asks for.

    Raises:
        ValueError: the device or the tensorboard package is not there.
    """
    if config.training.tensorboard:
        check_tensorboard()
    return pick_device(config.training.device)
