"""Jobs of published sizes."""

from zprof.model.job import Batch, Degrees, Job, ModelUnit, Overlap, Residual
from zprof.model.machines import Hardware
from zprof.model.plan import PlannedStep, Scheme
from zprof.planner.models.presets import find_preset
from zprof.planner.planned_step import plan_step

BLOCK_1T = 12 * 25600**2


def trillion(hardware: Hardware, tokens: int, units: int = 128, degrees: Degrees | None = None) -> Job:
    """128 blocks of hidden size 25600 in so many units, flat over 1024 devices, recomputed."""
    elements = 128 * BLOCK_1T // units
    return Job(
        parameters=128 * BLOCK_1T,
        units=tuple(ModelUnit(name=f"u{i}", elements=elements) for i in range(units)),
        degrees=degrees or Degrees(dp=1024),
        batch=Batch(samples=1, sequence=tokens),
        residual=Residual(checkpointing=True),
        overlap=Overlap(keep_last=True),
        hardware=hardware,
    )


def seven(hardware: Hardware, tokens: int) -> Job:
    return Job(
        parameters=7_500_000_000,
        units=tuple(ModelUnit(name=f"u{i}", elements=7_500_000_000 // 36) for i in range(36)),
        degrees=Degrees(dp=64),
        batch=Batch(samples=1, sequence=tokens),
        overlap=Overlap(keep_last=True),
        hardware=hardware,
    )


def of_preset(
    name: str, hardware: Hardware, degrees: Degrees, *, checkpointing: bool = True, micro_batches: int = 1
) -> Job:
    """A named model with one sample of 1024 tokens in each micro-batch."""
    named = find_preset(name)
    return Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=degrees,
        batch=Batch(samples=1, sequence=1024, micro_batches=micro_batches),
        hardware=hardware,
        residual=Residual(checkpointing=checkpointing),
    )


def known_unit(
    name: str,
    elements: int,
    *,
    saved: int = 0,
    kept: int = 0,
    forward: int = 0,
    backward: int = 0,
    frozen: int = 0,
    encloses: bool = False,
) -> ModelUnit:
    """A unit that is known by the sums of its bytes."""
    return ModelUnit(
        name=name,
        elements=elements,
        frozen_elements=frozen,
        encloses=encloses,
        saved_bytes=saved,
        checkpoint_bytes=kept,
        forward_work_bytes=forward,
        backward_work_bytes=backward,
    )


def known_step(job: Job, scheme: Scheme = Scheme.ZERO_3) -> PlannedStep:
    """The planned step, which must be known."""
    found = plan_step(job, scheme)
    assert found is not None
    return found
