"""Compute, gather and reduction time of each unit of a job on given hardware.

    c_u = flop_u / (F eta), flop_u = 2 psi_u T where the unit does not say it
    b_u = 2 c_u, 3 c_u with recomputation of the forward

with psi_u elements, T tokens of a device in a micro-batch, F eta the flop/s that are reached
(arXiv 1910.02054, section 4.2; backward and recomputation: arXiv 2104.04473, appendix).  The root is not
recomputed, frozen weights have no product of their own in the backward.  The optimizer's update is left out.

Equal units are grouped in runs.  F is the vendor's peak of 16-bit matrices, or of fp32 without TF32 where an
element of the parameters has 4 bytes.  Runs keep a model of a hundred thousand layers as quick as one of
ten.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from zprof.model.gaps import Gap
from zprof.model.job import Hardware, Job, Unit
from zprof.planner.rounding import ceil_div
from zprof.planner.step.collectives import all_reduce_ns, data_group, gather_ns
from zprof.planner.step.parallelism import BlockTimes, block_times


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Of each of ``count`` units alike, in whole nanoseconds.

    ``backward_ns`` holds the recomputation.  ``reduce_ns``: a reduce-scatter, or an all-reduce.  ``model_*``:
    collectives of the model-parallel group in the pass.  ``copy_ns``: of its checkpoint, out or in.
    """

    count: int = 1
    forward_ns: int
    backward_ns: int
    gather_ns: int = 0
    reduce_ns: int = 0
    model_forward_ns: int = 0
    model_backward_ns: int = 0
    copy_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTimes:
    """Of all units in the order of the forward; ``root`` encloses the others, and is one."""

    units: tuple[UnitTimes, ...]
    root: UnitTimes | None = None

    @property
    def computed(self) -> tuple[UnitTimes, ...]:
        """In the order in which forwards end."""
        return self.units if self.root is None else (*self.units, self.root)


def pair_with_next(units: Sequence[UnitTimes]) -> Iterator[tuple[UnitTimes, UnitTimes | None]]:
    """Each run of units, and the one after it."""
    yield from pairwise((*units, None))


#: A product of matrices has 2 flop for each weight and token (arXiv 1910.02054, section 4.2).
_FLOP_PER_ELEMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """So many units one after another, alike in all that time depends on.

    ``flop_per_token``: of the forward of one of them.
    """

    count: int
    elements: int
    flop_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The units of one device in the order of the forward; ``root`` encloses the others, if there is one."""

    runs: tuple[Run, ...]
    root: Run | None = None

    @property
    def blocks(self) -> int:
        """Units without the root."""
        return sum(run.count for run in self.runs)

    @property
    def all(self) -> tuple[Run, ...]:
        """With the root first."""
        return self.runs if self.root is None else (self.root, *self.runs)

    @property
    def elements(self) -> int:
        """Of all units."""
        return sum(run.count * run.elements for run in self.all)

    @property
    def last(self) -> Run:
        """Of the last unit; the root only where it is alone, as its forward encloses the others."""
        return self.all[-1]


def stack_units(job: Job) -> Stack | None:
    """The units of a job; None where they are not known, or their flop cannot be."""
    if not job.units:
        return None
    inner = [unit for unit in job.units if not unit.encloses]
    roots = [unit for unit in job.units if unit.encloses]
    if len(roots) > 1:  # only the outermost one encloses all; what is in it takes its turn
        inner, roots = [*roots[1:], *inner], roots[:1]
    tokens = job.batch.tokens
    return Stack(runs=_group_runs(inner, tokens), root=next(iter(_group_runs(roots, tokens)), None))


def take_blocks(stack: Stack, count: int) -> Stack:
    """The first ``count`` blocks, with the root."""
    left, kept = count, []
    for run in stack.runs:
        taken = min(left, run.count)
        if taken:
            kept.append(Run(count=taken, elements=run.elements, flop_per_token=run.flop_per_token))
        left -= taken
    return Stack(runs=tuple(kept), root=stack.root)


def _group_runs(units: Sequence[Unit], tokens: int | None) -> tuple[Run, ...]:
    alike = groupby(units, key=lambda unit: (unit.elements, _flop_per_token(unit, tokens)))
    return tuple(
        Run(count=sum(1 for _ in members), elements=elements, flop_per_token=flop)
        for (elements, flop), members in alike
    )


def _flop_per_token(unit: Unit, tokens: int | None) -> float:
    """As the unit says; else of matrices alone: without attention over the sequence, which adds s/6h."""
    if unit.forward_flop is None or not tokens:
        return float(_FLOP_PER_ELEMENT * unit.elements)
    return unit.forward_flop / tokens


#: A backward multiplies twice for each product of the forward: by the inputs, and, where they are trained,
#: by the weights.
_INPUT_PRODUCTS = 1
_NS_PER_S = 1e9


def device_stack(job: Job, stack: Stack) -> Stack:
    """The units of the stage of the pipeline that has most: the root, and its part of the others."""
    return take_blocks(stack, ceil_div(stack.blocks, job.degrees.pp))


def device_layers(job: Job) -> int:
    """Blocks of the shape on that stage; 0 where the shape is not known."""
    return 0 if job.shape is None else ceil_div(job.shape.layers, job.degrees.pp)


def device_times(job: Job, hardware: Hardware, stack: Stack, stage: int) -> StackTimes | None:
    """Of every unit of a device; None where something that takes time is not known."""
    tokens, within = job.batch.tokens, _model_parallel_times(job, hardware, stack)
    if tokens is None or within is None or reached_flops_per_s(job, hardware) is None:
        return None
    mine = device_stack(job, stack)
    alone = BlockTimes(forward_ns=0, backward_ns=0, copy_ns=0)
    backward = _INPUT_PRODUCTS + trained_elements(job, job.parameters) / job.parameters
    again = 1 if job.residual.checkpointing else 0
    return StackTimes(
        units=tuple(_time_unit(job, hardware, run, stage, within, backward + again) for run in mine.runs),
        root=None if mine.root is None else _time_unit(job, hardware, mine.root, stage, alone, backward),
    )


def trained_elements(job: Job, elements: int) -> int:
    """Of so many, those that are trained: frozen ones count as spread evenly over the model."""
    return elements - elements * job.frozen_parameters // job.parameters


def data_link_ns(job: Job, hardware: Hardware, run: Run, stage: int) -> tuple[int, int]:
    """A gather of all parameters of one unit, and a reduction of its gradients (in stage 0 an all-reduce).

    What is frozen has no gradient, and is not gathered after an update (stages 1 and 2).
    Constant-size buffers cut a reduction into so many messages; a gather is one.
    """
    group, sizes = data_group(hardware, job.degrees), job.element_bytes
    trained, most = trained_elements(job, run.elements), job.residual.constant_buffer_elements
    moved = run.elements if stage == 3 else trained
    messages = min(1, trained) if most is None else math.ceil(trained / most)
    reduce = all_reduce_ns if stage == 0 else gather_ns
    gather = gather_ns(group, moved * sizes.gathered, min(1, moved)) if stage else 0.0
    return round(gather), round(reduce(group, trained * sizes.reduced, messages))


def _time_unit(
    job: Job, hardware: Hardware, run: Run, stage: int, within: BlockTimes, backward: float
) -> UnitTimes:
    rate = reached_flops_per_s(job, hardware) or math.inf
    forward = run.flop_per_token * (job.batch.tokens or 0) / rate * _NS_PER_S
    gather, reduce = data_link_ns(job, hardware, run, stage)
    return UnitTimes(
        count=run.count,
        forward_ns=round(forward),
        backward_ns=round(backward * forward),
        gather_ns=gather,
        reduce_ns=reduce,
        model_forward_ns=within.forward_ns,
        model_backward_ns=within.backward_ns,
        copy_ns=within.copy_ns,
    )


def _model_parallel_times(job: Job, hardware: Hardware, stack: Stack) -> BlockTimes | None:
    """What travels within the passes of a unit: of a block, by as many blocks as a unit is."""
    if job.degrees.mp == 1 and not job.residual.offload:
        return BlockTimes(forward_ns=0, backward_ns=0, copy_ns=0)
    block = block_times(job, hardware)
    if block is None or job.shape is None or not stack.blocks:
        return None
    share = job.shape.layers / stack.blocks
    return BlockTimes(
        forward_ns=round(block.forward_ns * share),
        backward_ns=round(block.backward_ns * share),
        copy_ns=round(block.copy_ns * share),
    )


def reached_flops_per_s(job: Job, hardware: Hardware) -> float | None:
    """None where the job computes in fp32, and the peak of that is not known."""
    peak = hardware.peak_flops_per_s(job.element_bytes.parameter)
    return None if peak is None else peak * hardware.efficiency_ratio


def find_rate_gaps(job: Job) -> tuple[Gap, ...]:
    """That a job has no time on its hardware; empty where it has, or needs none."""
    hardware = job.hardware
    if hardware is None or reached_flops_per_s(job, hardware) is not None:
        return ()
    return (
        Gap(
            what="times of a step",
            reason=f"the fp32 peak of {hardware.name} is not known, and its peak is that of 16-bit matrices",
            remedy="state peak_fp32_tflops in the hardware's file, or plan with --precision bf16",
        ),
    )
