"""Record the training of a DeepSpeed engine.

    from zprof.integrations.deepspeed import record_deepspeed

    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    with record_deepspeed(engine, "run.zprof"):
        for batch in batches:
            engine.backward(engine(batch))
            engine.step()

Then run ``zprof report run.zprof``. Steps are detected from the engine's own step counter, so accumulation
and a pipeline's ``train_batch()`` need no extra calls.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zprof.collectors.recorder import Recorder, record
from zprof.collectors.schedule import Schedule
from zprof.collectors.training import detect_training
from zprof.integrations.frameworks import unwrap_optimizer
from zprof.model.errors import BadInput
from zprof.model.training import TrainingFacts

_ENGINE_ATTRIBUTES = (
    "module",
    "optimizer",
    "global_steps",
    "zero_optimization_stage",
    "gradient_accumulation_steps",
)


@contextmanager
def record_deepspeed(engine: Any, path: str | Path, *, steps: Schedule | None = None) -> Iterator[Recorder]:
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
        model=engine.module,
        optimizer=list_deepspeed_optimizers(engine),
        steps=steps,
        training=lambda: detect_deepspeed_facts(engine),
    )
    with recording, _watch_steps(engine, recording.step):
        yield recording


def is_deepspeed_engine(model: Any) -> bool:
    """Return True if an object has the attributes of a DeepSpeed engine."""
    return all(hasattr(model, name) for name in _ENGINE_ATTRIBUTES)


def list_deepspeed_optimizers(engine: Any) -> list[Any]:
    """List the innermost optimizer and, in stage 3, the fp32 partitions that it holds only during a step."""
    masters = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    partitions = [] if masters is None else [SimpleNamespace(param_groups=[{"params": masters}], state={})]
    return [unwrap_optimizer(engine.optimizer), *partitions]


def detect_deepspeed_facts(engine: Any) -> TrainingFacts:
    """Return the training facts of the engine.

    In stage 3 the size of a parameter tensor is 0, and ``ds_numel`` is the actual size.
    """
    detected = detect_training(engine.module, list_deepspeed_optimizers(engine))
    parameter, gradient = (kind.itemsize for kind in engine.get_data_types())
    return replace(
        detected,
        engine="deepspeed",
        stage=int(engine.zero_optimization_stage()),
        parameters=_count_elements(engine.module),
        shard_ranks=int(engine.seq_dp_world_size),
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        communication_bytes=parameter,
        reduction_bytes=engine.communication_data_type.itemsize,
        micro_batches=int(engine.gradient_accumulation_steps()),
        samples_per_step=_get_samples_per_step(engine),
    )


def _get_samples_per_step(engine: Any) -> int | None:
    """Return the global batch size if the engine provides it."""
    batch = getattr(engine, "train_batch_size", None)
    return int(batch()) if callable(batch) else None


def _count_elements(module: Any) -> int | None:
    """Count all elements; None if some are frozen, which have no gradient and are not communicated."""
    parameters = list(module.parameters())
    if not all(parameter.requires_grad for parameter in parameters):
        return None
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters)


@contextmanager
def _watch_steps(engine: Any, step: Callable[[], None]) -> Iterator[None]:
    """Call ``step`` after each engine call that has updated the model.

    ``global_steps`` counts in all modes. ``is_gradient_accumulation_boundary()`` would have to be called
    before the step, and returns False if the caller decides when gradients are complete.
    """
    name = "train_batch" if hasattr(engine, "train_batch") else "step"
    original = getattr(engine, name)

    @functools.wraps(original)
    def call_and_detect_step(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            step()
        return result

    setattr(engine, name, call_and_detect_step)
    try:
        yield
    finally:
        delattr(engine, name)
