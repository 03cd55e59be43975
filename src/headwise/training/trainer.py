"""The loop: steps, evaluations and checkpoints, from the first or from where a run was left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headwise.model.folder import load_weights
from headwise.text import Batches, TokenFile, sequential_windows
from headwise.training.checkpoint import (
    MODEL,
    NonFiniteError,
    TrainingState,
    load_optimizer,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from headwise.training.compiling import compiled_or_eager
from headwise.training.evaluation import evaluate_batches
from headwise.training.interrupt import Interrupted, deferred_interrupt
from headwise.training.learner import Learner, check_finite
from headwise.training.metrics import MetricsLog, tokens_per_second
from headwise.training.observer import Observer, Observers, Start, Step, Validation
from headwise.training.run_data import check_identity
from headwise.training.run_folder import RunFolder
from headwise.training.tensorboard import TensorBoardLog

# The fixed validation batches are the same for every run on a text, whatever its seed.
VALIDATION_SEED = 0


@dataclass(frozen=True)
class Material:
    """What a model learns from."""

    train: TokenFile
    validation: TokenFile | None
    block_size: int
    """Tokens of a window."""
    identity: dict[str, str]
    """Hashes of all that must stay the same from the first step to the last."""


class Trainer:
    """Trains a model in a run folder: steps, evaluations, checkpoints, the best weights."""

    def __init__(
        self,
        learner: Learner,
        material: Material,
        folder: RunFolder,
        observer: Observer,
        keep: Callable[[], None],
    ) -> None:
        """keep: puts the model into its folder; called whenever it is the best so far."""
        self.learner = learner
        self.model, self.recipe = learner.model, learner.recipe
        self.forward = learner.forward  # for evaluations, which are not compiled
        self.material = material
        self.folder = folder
        self.observer = observer
        self.keep = keep
        self.device = next(self.model.parameters()).device
        self.batches = Batches(material.train, material.block_size, self.recipe.batch_size, self.recipe.seed)
        self.validation_batches = self._fixed_validation_batches()
        self.progress = TrainingState(identity=dict(material.identity))
        self.saved: int | None = None  # step of the newest checkpoint

    def restore(self, checkpoint: Path, progress: TrainingState) -> None:
        """Go on from a checkpoint."""
        check_identity(progress.identity, self.progress.identity)
        if progress.step > self.recipe.max_steps:
            raise ValueError(
                f"max_steps={self.recipe.max_steps} is less than the {progress.step} steps this run has done"
            )
        load_weights(checkpoint / MODEL, self.model)
        load_optimizer(checkpoint, self.learner.optimizer)
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

    def _start(self) -> None:
        validation = self.material.validation
        self.events.on_start(
            Start(
                folder=self.folder.path,
                step=self.progress.step,
                max_steps=self.recipe.max_steps,
                parameters=sum(p.numel() for p in self.model.parameters()),
                device=str(self.device),
                tokens_per_step=self.recipe.windows_per_step * self.material.block_size,
                train_tokens=self.material.train.count,
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
            self.learner.forward = compiled_or_eager(self.model, x.to(self.device), self.events.on_message)

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
        with self._naming_what_is_kept():
            learned = self.learner.step(progress.step, batches)
        progress.step = number
        progress.position += recipe.windows_per_step
        progress.loss_sum += learned.loss
        progress.loss_count += 1
        seconds = time.perf_counter() - started
        progress.seconds += seconds
        speed = tokens_per_second(recipe.windows_per_step * self.material.block_size, seconds)
        self.events.on_step(
            Step(number, learned.loss, learned.learning_rate, learned.gradient_norm, self.tokens, speed)
        )

    def _validate(self) -> bool:
        """Evaluate on the fixed batches; whether it is the best so far."""
        if not self.validation_batches:
            return False
        progress = self.progress
        loss = evaluate_batches(self.model, self.validation_batches, self.forward).loss
        with self._naming_what_is_kept():
            check_finite("validation loss", loss, progress.step)
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
            self.learner.optimizer,
            keep=self.recipe.keep_checkpoints,
        )
        self.saved = self.progress.step
        self._keep_best()

    def _keep_best(self) -> None:
        """Put the weights into the model folder if they are the best so far (without validation: always)."""
        if not self.validation_batches:
            self.progress.best_step = self.progress.step
        if self.progress.best_step == self.progress.step:
            self.keep()

    @contextmanager
    def _naming_what_is_kept(self) -> Iterator[None]:
        try:
            yield
        except NonFiniteError as error:
            kept = "Nothing is saved yet"
            if self.saved is not None:
                kept = f"{self.folder.path} keeps those of step {self.saved}"
            raise NonFiniteError(f"{error}. {kept}; use a lower learning_rate or grad_clip") from error

    @property
    def tokens(self) -> int:
        """Tokens learned from so far."""
        return self.progress.position * self.material.block_size

    def _to_device(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0].to(self.device), batch[1].to(self.device)

    def _fixed_validation_batches(self) -> list[tuple[Tensor, Tensor]]:
        """The validation batches of every evaluation; the whole split, where that is less."""
        split, count, size = self.material.validation, self.recipe.eval_batches, self.recipe.batch_size
        if split is None:
            return []
        if split.count - 1 <= count * size * self.material.block_size:
            return list(sequential_windows(split, self.material.block_size, size))
        batches = Batches(split, self.material.block_size, size, VALIDATION_SEED)
        return [batches.at(number * size) for number in range(count)]


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Give back the caller's random state afterwards."""
    devices = [device.index or torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
