"""Record the training of a DeepSpeed engine.

    from zprof.integrations.deepspeed import record_deepspeed

    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    with record_deepspeed(engine, "run.zprof"):
        for batch in batches:
            engine.backward(engine(batch))
            engine.step()

Then run ``zprof diagnose run.zprof``. Steps are detected from the engine's step counter, so accumulation and
the pipeline's ``train_batch()`` need no extra calls.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zprof.base.errors import BadInput
from zprof.collectors.record.engines.deepspeed import (
    call_update,
    detect_facts,
    is_deepspeed_engine,
    list_optimizers,
)
from zprof.collectors.record.recorder import Recorder, record
from zprof.collectors.record.schedule import RecordingSchedule


@contextmanager
def record_deepspeed(
    engine: Any, path: str | Path, *, steps: RecordingSchedule | None = None
) -> Iterator[Recorder]:
    """Record the engine inside the context; enter it on every rank, after ``deepspeed.initialize``.

    Args:
        engine: The engine returned by ``deepspeed.initialize``.
        path: The run directory, the same on every rank.
        steps: The steps to record, see :func:`zprof.steps`.

    Raises:
        BadInput: ``engine`` is not a DeepSpeed engine.
    """
    if not is_deepspeed_engine(engine):
        raise BadInput(
            f"record_deepspeed: {type(engine).__name__} is not a DeepSpeed engine",
            hint="pass the first value returned by deepspeed.initialize()",
        )
    recording = record(
        path,
        model=engine,
        optimizer=list_optimizers(engine),
        steps=steps,
        training=lambda: detect_facts(engine),
    )
    with recording, _watch_steps(engine, recording):
        yield recording


@contextmanager
def _watch_steps(engine: Any, recording: Recorder) -> Iterator[None]:
    """Mark a step after each engine call that has updated the model."""
    name = "train_batch" if hasattr(engine, "train_batch") else "step"
    original = getattr(engine, name)

    @functools.wraps(original)
    def call_and_detect_step(*args: Any, **kwargs: Any) -> Any:
        result, skipped = call_update(engine, lambda: original(*args, **kwargs))
        if skipped is not None:
            recording.step(skipped=skipped)
        return result

    setattr(engine, name, call_and_detect_step)
    try:
        yield
    finally:
        delattr(engine, name)
