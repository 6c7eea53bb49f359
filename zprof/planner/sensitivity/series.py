"""The series and the answers."""

from dataclasses import replace

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme
from zprof.model.planning.sensitivity import Sensitivity
from zprof.planner.degrees import spread
from zprof.planner.hardware.presets import A100, H100, V100
from zprof.planner.models.units import with_units
from zprof.planner.sensitivity.answers import answers_of, kinds_side_by_side, speed_up_answers
from zprof.planner.sensitivity.break_even import break_even_of
from zprof.planner.sensitivity.conditions import with_tokens
from zprof.planner.sensitivity.points import (
    bandwidth_points,
    latency_points,
    token_points,
    world_points,
    worlds,
)
from zprof.planner.sensitivity.speed_up import speed_up_of
from zprof.planner.step.placement import data_group
from zprof.planner.step.rate import reached_flops_per_s
from zprof.planner.step.runs import Stack, stack_of

#: Where no hardware is stated: kinds that differ in time (an h200 is an h100 with more memory).
_KINDS = (V100, A100, H100)


def sensitivity_of(job: Job) -> Sensitivity:
    """How ZeRO-3 of this job answers to bandwidth, latency, tokens and world size.

    Units of its shape are made after it is spread: micro-batches, and so their bytes, are others then.
    Without hardware all known kinds of machines answer for the break-even, and the series are empty.
    Without a peak in the job's precision there is nothing to say (``step.rate`` has the gap).
    Without a batch they are at the largest power of two of tokens that is below the break-even.
    """
    if job.hardware is not None and reached_flops_per_s(job, job.hardware) is None:
        return Sensitivity()
    bare = spread(job, Scheme.ZERO_3)
    job = with_units(bare)
    stack = stack_of(job)
    kinds = _KINDS if job.hardware is None else (job.hardware,)
    asked = [_on(job, kind) for kind in kinds]
    even = [tuple(break_even_of(there, kind, stack)) for there, kind in zip(asked, kinds, strict=True)]
    flat = tuple(row for found in even for row in found)
    single = tuple(
        sentence
        for there, kind, found in zip(asked, kinds, even, strict=True)
        for sentence in answers_of(there, kind, stack, found)
    )
    known = Sensitivity(answers=(*kinds_side_by_side(job, kinds, flat), *single), break_even=flat)
    return known if job.hardware is None or stack is None else _series(known, bare, asked[0], stack)


def _series(known: Sensitivity, bare: Job, there: Job, stack: Stack) -> Sensitivity:
    """``bare``: the job before units of its shape are made, which keep other bytes with other batches."""
    speed_up = speed_up_of(bare, stack, worlds(bare))
    return replace(
        known,
        answers=(*known.answers, *speed_up_answers(speed_up)),
        bandwidth=bandwidth_points(there, stack),
        latency=latency_points(there, stack),
        tokens=token_points(there, stack, known.break_even),
        world=world_points(there, stack),
        speed_up=speed_up,
    )


def _on(job: Job, hardware: Hardware) -> Job:
    """The job on that hardware, with tokens."""
    there = replace(job, hardware=hardware)
    if job.batch.tokens is not None:
        return there
    rate = reached_flops_per_s(job, hardware) or 0.0
    even = job.element_bytes.gathered * rate / (2 * data_group(hardware, job.degrees).bytes_per_s)
    return with_tokens(there, 1 << max(0, int(even).bit_length() - 1))
