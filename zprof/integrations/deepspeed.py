"""Records the training of a DeepSpeed engine.

    from zprof.integrations.deepspeed import record_deepspeed

    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    with record_deepspeed(engine, "run.zprof"):
        for batch in batches:
            engine.backward(engine(batch))
            engine.step()

Then ``zprof report run.zprof``.  Steps are found by themselves, from the engine's own count of them, so
accumulation and a pipeline's ``train_batch()`` need nothing more.
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
    """Record while entered; enter it on every rank, after ``deepspeed.initialize``.

    Args:
        engine: As ``deepspeed.initialize`` returned it.
        path: The run directory; every rank gives the same.
        steps: Which steps are recorded, see :func:`zprof.steps`.

    Raises:
        BadInput: ``engine`` is none of DeepSpeed's.
    """
    if not is_deepspeed_engine(engine):
        raise BadInput(
            f"record_deepspeed: {type(engine).__name__} is not a DeepSpeed engine",
            hint="pass the first of what deepspeed.initialize() returned",
        )
    recording = record(
        path,
        model=engine.module,
        optimizer=deepspeed_optimizers(engine),
        steps=steps,
        training=lambda: deepspeed_facts(engine),
    )
    with recording, _watch_steps(engine, recording.step):
        yield recording


def is_deepspeed_engine(model: Any) -> bool:
    """Whether it has what an engine of DeepSpeed has."""
    return all(hasattr(model, name) for name in _ENGINE_ATTRIBUTES)


def deepspeed_optimizers(engine: Any) -> list[Any]:
    """The optimizer that steps; in stage 3 also the fp32 partitions that it gets only while it steps."""
    masters = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    partitions = [] if masters is None else [SimpleNamespace(param_groups=[{"params": masters}], state={})]
    return [unwrap_optimizer(engine.optimizer), *partitions]


def deepspeed_facts(engine: Any) -> TrainingFacts:
    """What the engine says of itself.  In stage 3 a parameter's own size is 0, ``ds_numel`` the true one."""
    seen = detect_training(engine.module, deepspeed_optimizers(engine))
    parameter, gradient = (kind.itemsize for kind in engine.get_data_types())
    return replace(
        seen,
        engine="deepspeed",
        stage=int(engine.zero_optimization_stage()),
        parameters=_count_elements(engine.module),
        shard_ranks=int(engine.seq_dp_world_size),
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        communication_bytes=parameter,
        reduction_bytes=engine.communication_data_type.itemsize,
        micro_batches=int(engine.gradient_accumulation_steps()),
        samples_per_step=_samples_per_step(engine),
    )


def _samples_per_step(engine: Any) -> int | None:
    """The global batch, where the engine has one."""
    batch = getattr(engine, "train_batch_size", None)
    return int(batch()) if callable(batch) else None


def _count_elements(module: Any) -> int | None:
    """All elements, where all are trained: a frozen one has no gradient and does not travel."""
    parameters = list(module.parameters())
    if not all(parameter.requires_grad for parameter in parameters):
        return None
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters)


@contextmanager
def _watch_steps(engine: Any, step: Callable[[], None]) -> Iterator[None]:
    """Call ``step`` after each call of the engine's that has updated the model.

    ``is_gradient_accumulation_boundary()`` would have to be asked before the call, and says no there where
    the caller himself decides when gradients are complete; ``global_steps`` counts in all modes.
    """
    name = "train_batch" if hasattr(engine, "train_batch") else "step"
    original = getattr(engine, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            step()
        return result

    setattr(engine, name, watched)
    try:
        yield
    finally:
        delattr(engine, name)
