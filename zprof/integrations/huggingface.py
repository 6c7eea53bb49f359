"""Record a run of the Hugging Face transformers Trainer.

    from zprof.integrations.huggingface import ZprofCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ZprofCallback("run.zprof")])
    trainer.train()

Then run ``zprof diagnose run.zprof``. A step is an optimizer step. Only the first ``train()`` is recorded.

``ZprofLogCallback(every=100)`` instead writes figures of every hundredth step into the training log.
"""

import os
from pathlib import Path
from typing import Any

from zprof.base.errors import make_missing_package_error
from zprof.collectors.record.recorder import Recorder, record
from zprof.collectors.record.schedule import RecordingSchedule
from zprof.collectors.record.training import detect_facts
from zprof.integrations.training_log import TrainingLog
from zprof.model.training import TrainingFacts

try:
    from transformers import TrainerCallback
except ImportError:
    raise make_missing_package_error(__name__, "transformers", "pip install transformers") from None

_SHARDING_VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")


class ZprofCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that records the run; pass one to ``Trainer(callbacks=[…])`` on every rank.

    Args:
        path: The run directory, the same on every rank.
        steps: The steps to record, see :func:`zprof.steps`.
        training: Known facts about the run; by default detected from the model.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        steps: RecordingSchedule | None = None,
        training: TrainingFacts | None = None,
    ) -> None:
        self._path, self._steps, self._training = path, steps, training
        self._recording: Recorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start recording with the Trainer's model and optimizer."""
        if self._recording is not None:
            return
        owners = _unwrap_owners(kwargs)
        self._recording = record(
            self._path,
            model=owners[0],
            optimizer=owners[1],
            steps=self._steps,
            training=lambda: self._training or _detect_facts(args, *owners),
        )
        self._recording.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of an optimizer step."""
        if self._recording is not None:
            self._recording.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the rest of the recording; if training failed, this happens at interpreter exit instead."""
        if self._recording is not None:
            self._recording.close("complete")


class ZprofLogCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that logs exposed time, wait and peak memory by tenant; pass one on every rank.

    Args:
        every: Steps from one entry to the next.
        folder: Where ``zprof.jsonl`` is appended; by default the Trainer's output folder.
        tensorboard: A ``SummaryWriter`` or a folder; by default where the Trainer's own events are, if it
            reports to TensorBoard.
    """

    def __init__(
        self, every: int = 100, *, folder: str | Path | None = None, tensorboard: Any = None
    ) -> None:
        self._every, self._folder, self._tensorboard = every, folder, tensorboard
        self._log: TrainingLog | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the log with the Trainer's model and optimizer."""
        owners, tensorboard = _unwrap_owners(kwargs), self._tensorboard
        if tensorboard is None and "tensorboard" in (args.report_to or ()):
            tensorboard = getattr(args, "logging_dir", None) or Path(args.output_dir, "runs")
        self._log = TrainingLog(
            self._folder or args.output_dir,
            model=owners[0],
            optimizer=owners[1],
            every=self._every,
            tensorboard=tensorboard,
            training=lambda: _detect_facts(args, *owners),
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of an optimizer step."""
        if self._log is not None:
            self._log.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what is complete."""
        if self._log is not None:
            self._log.close()


def _unwrap_owners(given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model and the optimizer out of accelerate's wrappers."""
    optimizer = given["optimizer"]
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return given["model"], optimizer


def _detect_facts(args: Any, model: Any, optimizer: Any) -> TrainingFacts:
    return detect_facts(
        model,
        optimizer,
        micro_batches=args.gradient_accumulation_steps,
        data_parallel=_is_data_parallel(args),
    )


def _is_data_parallel(args: Any) -> bool:
    """Return True if the Trainer wraps the model in DDP, because the callback gets the unwrapped model."""
    sharded = (
        args.fsdp or args.deepspeed or any(os.environ.get(name) == "true" for name in _SHARDING_VARIABLES)
    )
    return not sharded and args.parallel_mode.value == "distributed"
