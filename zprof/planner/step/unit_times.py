"""What each unit of a job takes on a kind of machine.

    c_u = flop_u / (F eta), flop_u = 2 psi_u T where the unit does not say it
    b_u = 2 c_u, 3 c_u with recomputation of the forward

with psi_u elements, T tokens of a device in a micro-batch, F eta the flop/s that are reached
(arXiv 1910.02054, section 4.2; backward and recomputation: arXiv 2104.04473, appendix).  The root is not
recomputed, frozen weights have no product of their own in the backward.  The optimizer's update is left out.
"""

import math

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.planner.rounding import ceil_div
from zprof.planner.step.collectives import all_reduce_ns, gather_ns
from zprof.planner.step.model_parallel import BlockTimes, block_times
from zprof.planner.step.placement import data_group
from zprof.planner.step.rate import reached_flops_per_s
from zprof.planner.step.runs import Run, Stack, first_of
from zprof.planner.step.times import StackTimes, UnitTimes

#: A backward multiplies twice for each product of the forward: by the inputs, and, where they are trained,
#: by the weights.
_BY_INPUTS = 1
_NS_PER_S = 1e9


def device_stack(job: Job, stack: Stack) -> Stack:
    """The units of the stage of the pipeline that has most: the root, and its part of the others."""
    return first_of(stack, ceil_div(stack.blocks, job.degrees.pp))


def device_layers(job: Job) -> int:
    """Blocks of the shape on that stage; 0 where the shape is not known."""
    return 0 if job.shape is None else ceil_div(job.shape.layers, job.degrees.pp)


def device_times(job: Job, hardware: Hardware, stack: Stack, stage: int) -> StackTimes | None:
    """Of every unit of a device; None where something that takes time is not known."""
    tokens, within = job.batch.tokens, _within(job, hardware, stack)
    if tokens is None or within is None or reached_flops_per_s(job, hardware) is None:
        return None
    mine = device_stack(job, stack)
    alone = BlockTimes(forward_ns=0, backward_ns=0, copy_ns=0)
    backward = _BY_INPUTS + trained_elements(job, job.parameters) / job.parameters
    again = 1 if job.residual.checkpointing else 0
    return StackTimes(
        units=tuple(_unit(job, hardware, run, stage, within, backward + again) for run in mine.runs),
        root=None if mine.root is None else _unit(job, hardware, mine.root, stage, alone, backward),
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


def _unit(
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


def _within(job: Job, hardware: Hardware, stack: Stack) -> BlockTimes | None:
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
