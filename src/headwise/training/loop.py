"""The training loop: steps, evaluations and checkpoints, from the first or from where a run was left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from headwise.model import GPT, GPTConfig, save_model
from headwise.model.device import pick_device
from headwise.model.folder import load_weights
from headwise.text import Batches, Prepared, sequential_windows
from headwise.training.checkpoint import (
    MODEL,
    NonFiniteError,
    TrainingState,
    load_optimizer,
    newest_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from headwise.training.compiling import Forward, compiled_or_eager
from headwise.training.config import RunConfig
from headwise.training.evaluation import bits_per_byte, evaluate, evaluate_batches, token_losses
from headwise.training.interrupt import Interrupted, deferred_interrupt
from headwise.training.metrics import MetricsLog, tokens_per_second
from headwise.training.observer import Observer, Observers, Start, Step, Validation
from headwise.training.optimizer import Optimizer
from headwise.training.run_data import check_identity, identity, prepare_runs, reopen
from headwise.training.run_folder import RunFolder, TrainResult
from headwise.training.tensorboard import TensorBoardLog, check_tensorboard

# The fixed validation batches are the same for every run on a text, whatever its seed.
VALIDATION_SEED = 0


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
    with _own_random_numbers(device):
        torch.manual_seed(config.training.seed)
        trainer = _Trainer(config, folder, prepared, device, observer)
        if found:
            trainer.restore(*found)
        folder.write_config(config)
        folder.result.unlink(missing_ok=True)  # of the run before it was extended
        trainer.run()
    result = trainer.result()
    folder.write_result(result)
    return result


def check_machine(config: RunConfig) -> torch.device:
    """The device of a run, once it is clear that this machine has what the run asks for.

    Raises:
        ValueError: the device or the tensorboard package is not there.
    """
    if config.training.tensorboard:
        check_tensorboard()
    return pick_device(config.training.device)


def accumulate(forward: Forward, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Add to the gradients those of the mean loss over all targets of all `batches`, and return that loss.

    The same, up to rounding, as one batch that holds them all, also where they hold unequally many targets.

    Raises:
        ValueError: no target at all.
    """
    total = sum(int((y != -100).sum()) for _, y in batches)
    if total == 0:
        raise ValueError("there is nothing to learn from: the batches hold no target")
    loss = torch.zeros((), device=batches[0][0].device)
    for x, y in batches:
        part = token_losses(forward(x), y) / total
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    return loss


class _Trainer:
    """One run in the making."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        prepared: Prepared,
        device: torch.device,
        observer: Observer,
    ) -> None:
        self.recipe = config.training
        self.folder = folder
        self.prepared = prepared
        self.device = device
        self.observer = observer
        self.block_size = config.model.block_size
        self.batches = Batches(prepared.train, self.block_size, self.recipe.batch_size, self.recipe.seed)
        self.validation_batches = self._fixed_validation_batches()
        shape = GPTConfig(**config.model.model_dump(), vocab_size=prepared.tokenizer.vocab_size)
        self.model = GPT(shape).to(device)
        self.optimizer = Optimizer(self.model, self.recipe)
        self.forward: Forward = self.model
        self.progress = TrainingState(identity=identity(prepared))
        self.saved: int | None = None  # step of the newest checkpoint

    def restore(self, checkpoint: Path, progress: TrainingState) -> None:
        """Go on from a checkpoint."""
        check_identity(progress.identity, self.progress.identity)
        if progress.step > self.recipe.max_steps:
            raise ValueError(
                f"max_steps={self.recipe.max_steps} is less than the {progress.step} steps this run has done"
            )
        load_weights(checkpoint / MODEL, self.model)
        load_optimizer(checkpoint, self.optimizer)
        self.progress, self.saved = progress, progress.step
        self._keep_best()  # the process may have ended between the checkpoint and this

    def run(self) -> None:
        """Do all steps that are left; afterwards the last one is saved."""
        self.log = MetricsLog(self.folder.path, after=self.saved)
        observers: list[Observer] = [self.log, self.observer]
        if self.recipe.tensorboard:
            observers.insert(1, TensorBoardLog(self.folder.path / "tensorboard", self.progress.step))
        self.events = Observers(*observers)
        try:
            with deferred_interrupt() as interrupted:
                self._run(interrupted)
        except BrokenPipeError:  # an observer's reader went away; that is not about the run's files
            raise
        except OSError as error:
            kept = f"saved as of step {self.saved}" if self.saved is not None else "not saved yet"
            raise OSError(
                f"stopped in step {self.progress.step}: {error}. The run in {self.folder.path} is {kept}; "
                "make room or mend the cause, then continue with --resume"
            ) from error
        finally:
            self.events.on_end()

    def _run(self, interrupted: Callable[[], bool]) -> None:
        self._start()
        if self.saved is None:
            self._validate()
            self._save()
        else:
            restore_random_state(self.progress.random, self.device)
        while not self._finished() and not interrupted():
            self._step()
            due = (
                self.progress.step % self.recipe.eval_every == 0
                or self.progress.step == self.recipe.max_steps
            )
            improved = due and self._validate()
            if improved or self.progress.step % self.recipe.checkpoint_every == 0:
                self._save()
        if self.saved != self.progress.step:
            self._save()
        if interrupted():
            raise Interrupted(self.folder.path, self.progress.step)

    def result(self) -> TrainResult:
        """Evaluate the best weights on the whole validation split."""
        load_weights(self.folder.path / MODEL, self.model)
        progress, validation, evaluation, bits = self.progress, self.prepared.validation, None, None
        if validation is not None:
            evaluation = evaluate(self.model, validation)
            bits = bits_per_byte(evaluation, validation, self.prepared.tokenizer)
        return TrainResult(
            folder=self.folder.path,
            val_loss=evaluation.loss if evaluation else None,
            bits_per_byte=bits,
            validation_tokens=evaluation.tokens if evaluation else 0,
            best_step=progress.best_step,
            steps=progress.step,
            stopped_early=progress.step < self.recipe.max_steps,
            parameters=self.model.num_parameters(),
            tokens=self._tokens(),
            seconds=progress.seconds,
            tokens_per_second=tokens_per_second(self._tokens(), progress.seconds),
            device=str(self.device),
            text_hash=self.prepared.text_hash,
        )

    def _start(self) -> None:
        validation = self.prepared.validation
        self.events.on_start(
            Start(
                folder=self.folder.path,
                step=self.progress.step,
                max_steps=self.recipe.max_steps,
                parameters=self.model.num_parameters(),
                device=str(self.device),
                tokens_per_step=self.recipe.windows_per_step * self.block_size,
                train_tokens=self.prepared.train.count,
                validation_tokens=validation.count if validation else 0,
            )
        )
        if validation is None:
            self.events.on_message(
                "no validation split (the text is too short or validation_fraction is 0): "
                "the last weights are kept, not the best"
            )
        if self.recipe.compile:
            x, _ = self.batches.at(0)
            self.forward = compiled_or_eager(self.model, x.to(self.device), self.events.on_message)

    def _finished(self) -> bool:
        patience = self.recipe.early_stop_patience
        return self.progress.step >= self.recipe.max_steps or 0 < patience <= self.progress.stale

    def _step(self) -> None:
        started = time.perf_counter()
        progress, recipe = self.progress, self.recipe
        number = progress.step + 1
        batches = [
            self._to_device(self.batches.at(progress.position + part * recipe.batch_size))
            for part in range(recipe.grad_accumulation)
        ]
        self.model.train()
        self.optimizer.zero_grad()
        loss = accumulate(self.forward, batches).item()
        self._check_finite("loss", loss, number)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        gradient_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._check_finite("gradient", gradient_norm.item(), number)
        if recipe.grad_clip:
            nn.utils.clip_grads_with_norm_(parameters, recipe.grad_clip, gradient_norm)
        rate = self.optimizer.step(progress.step)
        progress.step = number
        progress.position += recipe.windows_per_step
        progress.loss_sum += loss
        progress.loss_count += 1
        seconds = time.perf_counter() - started
        progress.seconds += seconds
        speed = tokens_per_second(recipe.windows_per_step * self.block_size, seconds)
        self.events.on_step(Step(number, loss, rate, gradient_norm.item(), self._tokens(), speed))

    def _validate(self) -> bool:
        """Evaluate on the fixed batches; whether it is the best so far."""
        if not self.validation_batches:
            return False
        progress = self.progress
        loss = evaluate_batches(self.model, self.validation_batches).loss
        self._check_finite("validation loss", loss, progress.step)
        train_loss = progress.loss_sum / progress.loss_count if progress.loss_count else None
        before = progress.best_loss
        best = before is None or loss < before
        self.events.on_validation(Validation(progress.step, loss, train_loss, best))
        if best:
            progress.best_loss, progress.best_step, progress.stale = loss, progress.step, 0
        else:
            progress.stale += 1
            self._warn_of_overfit(loss, train_loss)
        progress.loss_sum, progress.loss_count = 0.0, 0
        return best

    def _warn_of_overfit(self, loss: float, train_loss: float | None) -> None:
        progress = self.progress
        best = progress.best_loss
        if progress.overfit_told or best is None or train_loss is None:
            return
        if loss > 1.1 * best and train_loss < best:
            progress.overfit_told = True
            self.events.on_message(
                f"overfitting: the validation loss has risen from {best:.3f} (step {progress.best_step}) to "
                f"{loss:.3f} while the training loss is {train_loss:.3f}; the weights of step "
                f"{progress.best_step} are kept. More text, dropout, or early_stop_patience would help"
            )

    def _save(self) -> None:
        self.log.flush()
        self.progress.random = random_state(self.device)
        save_checkpoint(
            self.folder.checkpoints,
            self.progress,
            self.model,
            self.optimizer,
            keep=self.recipe.keep_checkpoints,
        )
        self.saved = self.progress.step
        self._keep_best()

    def _keep_best(self) -> None:
        """Put the weights into the model folder if they are the best so far (without validation: always)."""
        if not self.validation_batches:
            self.progress.best_step = self.progress.step
        if self.progress.best_step == self.progress.step:
            save_model(self.folder.path, self.model, self.prepared.tokenizer)

    def _check_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            kept = "Nothing is saved yet"
            if self.saved is not None:
                kept = f"{self.folder.path} keeps those of step {self.saved}"
            raise NonFiniteError(
                f"the {what} of step {step} is {value}; stopped before it could harm the weights. "
                f"{kept}; use a lower learning_rate or grad_clip"
            )

    def _tokens(self) -> int:
        return self.progress.position * self.block_size

    def _to_device(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0].to(self.device), batch[1].to(self.device)

    def _fixed_validation_batches(self) -> list[tuple[Tensor, Tensor]]:
        """The validation batches of every evaluation; the whole split, where that is less."""
        split, count, size = self.prepared.validation, self.recipe.eval_batches, self.recipe.batch_size
        if split is None:
            return []
        if split.count - 1 <= count * size * self.block_size:
            return list(sequential_windows(split, self.block_size, size))
        batches = Batches(split, self.block_size, size, VALIDATION_SEED)
        return [batches.at(number * size) for number in range(count)]


@contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Give back the caller's random state afterwards."""
    devices = [device.index or torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
