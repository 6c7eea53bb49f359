"""Record a Lightning fit, with either the ``lightning`` or the ``pytorch_lightning`` package.

    from zprof.integrations.lightning import ZprofCallback

    trainer = Trainer(callbacks=[ZprofCallback("run.zprof")])
    trainer.fit(model, batches)

Then run ``zprof diagnose run.zprof``. A step is a batch in which an optimizer stepped. Only the first fit
is recorded.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from zprof.base.errors import make_missing_package_error
from zprof.collectors.record.engines import deepspeed
from zprof.collectors.record.recorder import Recorder, record
from zprof.collectors.record.schedule import RecordingSchedule
from zprof.collectors.record.training import detect_facts
from zprof.model.training import TrainingFacts

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _find_callback_class() -> Any:
    """Return ``Callback`` from the package imported by the program, else from an installed package."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise make_missing_package_error(__name__, "lightning", "pip install lightning")


class ZprofCallback(_find_callback_class()):  # type: ignore[misc]
    """Callback that records the fit; pass one to ``Trainer(callbacks=[…])``.

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
        super().__init__()
        self._path, self._steps, self._training = path, steps, training
        self._recording: Recorder | None = None
        self._optimizer_steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording with the model as wrapped by the strategy."""
        if self._recording is not None:
            return
        model, optimizers = trainer.model, list(trainer.optimizers)
        self._optimizer_steps = trainer.global_step
        self._recording = record(
            self._path,
            model=model,
            optimizer=optimizers,
            steps=self._steps,
            training=lambda: (
                self._training
                or (
                    deepspeed.detect_facts(model)
                    if deepspeed.is_deepspeed_engine(model)
                    else detect_facts(model, optimizers, micro_batches=trainer.accumulate_grad_batches)
                )
            ),
        )
        self._recording.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark a step if an optimizer stepped in this batch."""
        if self._recording is not None and trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self._recording.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the rest of the recording."""
        self._close("complete")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the recording of a failed training."""
        self._close("failed")

    def _close(self, status: str) -> None:
        if self._recording is not None:
            self._recording.close(status)
