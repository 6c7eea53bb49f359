"""Estimate each unit's compute, gather and reduction time on given hardware, and its live bytes by operator.

    c_u = flop_u / (F eta), flop_u = 2 psi_u T unless the unit provides it
    b_u = 2 c_u, 3 c_u with recomputation

for psi_u elements, T tokens per device and micro-batch, and F eta achieved flop/s (arXiv 1910.02054, section
4.2; backward and recomputation: arXiv 2104.04473, appendix). The root is not recomputed. Frozen weights have
no weight-gradient product in the backward pass. The optimizer's update is not included.

Equal units are grouped in runs: a model with a hundred thousand layers plans as fast as a model with ten.
F is the vendor's peak for 16-bit matrices, or for fp32 without TF32 if a parameter element has 4 bytes.

To find live bytes, a pass is replayed as a list of steps: an operator allocates tensors, then tensors are
freed. Live bytes are measured after each operator, while its inputs and outputs are both live, so the peak is
one of these moments. With model parallelism, split matrices need an all-reduce (Megatron-LM, arXiv
1909.08053, section 3).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.job import Job, ModelUnit
from zprof.model.machines import Hardware
from zprof.planner.model_shapes import ModelSizes
from zprof.planner.parallelism import BlockTimes, block_times
from zprof.planner.rounding import ceil_div
from zprof.step.from_plan import StackTimes, UnitTimes, all_reduce_ns, gather_ns, make_data_group

#: A matrix product takes 2 flop per weight and token (arXiv 1910.02054, section 4.2).
_FLOP_PER_ELEMENT = 2
#: The backward pass does two products per forward product: for the input gradient, and for the weight
#: gradient if the weights are trained.
_INPUT_PRODUCTS = 1
_NS_PER_S = 1e9
#: Name of a gradient kept until another use of the same parameters produces its gradient.
HELD_GRADIENT = "held"


class EqualUnits(Struct, frozen=True, kw_only=True):
    """A run of consecutive units that are equal in all that affects time.

    ``flop_per_token``: forward flop of one unit.
    """

    count: int
    elements: int
    flop_per_token: float


class UnitStack(Struct, frozen=True, kw_only=True):
    """Units of one device in forward order; ``root``, if any, encloses the others."""

    runs: tuple[EqualUnits, ...]
    root: EqualUnits | None = None

    @property
    def blocks(self) -> int:
        """Number of units without the root."""
        return sum(run.count for run in self.runs)

    @property
    def all(self) -> tuple[EqualUnits, ...]:
        """All runs, the root first."""
        return self.runs if self.root is None else (self.root, *self.runs)

    @property
    def elements(self) -> int:
        """Elements of all units."""
        return sum(run.count * run.elements for run in self.all)

    @property
    def last(self) -> EqualUnits:
        """The run of the last unit; the root only if there is no other unit."""
        return self.all[-1]


def stack_units(job: Job) -> UnitStack | None:
    """Return the units of a job as runs; None if the job has no units."""
    if not job.units:
        return None
    inner = [unit for unit in job.units if not unit.encloses]
    roots = [unit for unit in job.units if unit.encloses]
    if len(roots) > 1:  # only the outermost root encloses all units; nested ones count as inner units
        inner, roots = [*roots[1:], *inner], roots[:1]
    tokens = job.batch.tokens
    return UnitStack(runs=_group_runs(inner, tokens), root=next(iter(_group_runs(roots, tokens)), None))


def _group_runs(units: Sequence[ModelUnit], tokens: int | None) -> tuple[EqualUnits, ...]:
    groups = groupby(units, key=lambda unit: (unit.elements, _flop_per_token(unit, tokens)))
    return tuple(
        EqualUnits(count=sum(1 for _ in members), elements=elements, flop_per_token=flop)
        for (elements, flop), members in groups
    )


def _flop_per_token(unit: ModelUnit, tokens: int | None) -> float:
    """Return the unit's flop per token, or an estimate from its matrices, which omits s/6h for attention."""
    if unit.forward_flop is None or not tokens:
        active = unit.elements if unit.active_elements is None else unit.active_elements
        return float(_FLOP_PER_ELEMENT * active)
    return unit.forward_flop / tokens


def select_device_stack(job: Job, stack: UnitStack) -> UnitStack:
    """Return the units of the largest pipeline stage: the root and its share of the blocks, rounded up."""
    # The root and the first ``count`` blocks.
    count = ceil_div(stack.blocks, job.degrees.pp)
    remaining, runs = count, []
    for run in stack.runs:
        taken = min(remaining, run.count)
        if taken:
            runs.append(EqualUnits(count=taken, elements=run.elements, flop_per_token=run.flop_per_token))
        remaining -= taken
    return UnitStack(runs=tuple(runs), root=stack.root)


def count_device_layers(job: Job) -> int:
    """Return the shape's blocks on the largest pipeline stage; 0 if the shape is unknown."""
    return 0 if job.shape is None else ceil_div(job.shape.layers, job.degrees.pp)


def compute_device_times(job: Job, hardware: Hardware, stack: UnitStack, stage: int) -> StackTimes | None:
    """Return the times of all units of a device; None if a time is unknown."""
    tokens, model_parallel = job.batch.tokens, _model_parallel_times(job, hardware, stack)
    if tokens is None or model_parallel is None or achieved_flops_per_s(job, hardware) is None:
        return None
    own_stack = select_device_stack(job, stack)
    no_collectives = BlockTimes(forward_ns=0, backward_ns=0, copy_ns=0)
    backward = _INPUT_PRODUCTS + trained_elements(job, job.parameters) / job.parameters
    recompute = 1 if job.residual.checkpointing else 0
    return StackTimes(
        units=tuple(
            _time_unit(job, hardware, run, stage, model_parallel, backward + recompute)
            for run in own_stack.runs
        ),
        root=None
        if own_stack.root is None
        else _time_unit(job, hardware, own_stack.root, stage, no_collectives, backward),
    )


def trained_elements(job: Job, elements: int) -> int:
    """Return the trained part of ``elements``, with frozen elements spread evenly over the model."""
    return elements - elements * job.frozen_parameters // job.parameters


def time_data_link(job: Job, hardware: Hardware, run: EqualUnits, stage: int) -> tuple[int, int]:
    """Return the times to gather a unit's parameters and to reduce its gradients, in ns.

    Stage 0 all-reduces. Frozen elements have no gradient and are not gathered after an update (stages 1 and
    2). Constant-size buffers split a reduction into several messages; a gather is one message.
    """
    group, sizes = make_data_group(hardware, job.degrees), job.element_bytes
    trained, max_elements = trained_elements(job, run.elements), job.residual.constant_buffer_elements
    moved = run.elements if stage == 3 else trained
    messages = min(1, trained) if max_elements is None else math.ceil(trained / max_elements)
    reduce = all_reduce_ns if stage == 0 else gather_ns
    gather = gather_ns(group, moved * sizes.gathered, min(1, moved)) if stage else 0.0
    return round(gather), round(reduce(group, trained * sizes.reduced, messages))


def _time_unit(
    job: Job, hardware: Hardware, run: EqualUnits, stage: int, model_parallel: BlockTimes, backward: float
) -> UnitTimes:
    rate = achieved_flops_per_s(job, hardware) or math.inf
    forward = run.flop_per_token * (job.batch.tokens or 0) / rate * _NS_PER_S
    gather, reduce = time_data_link(job, hardware, run, stage)
    return UnitTimes(
        count=run.count,
        forward_ns=round(forward),
        backward_ns=round(backward * forward),
        gather_ns=gather,
        reduce_ns=reduce,
        model_forward_ns=model_parallel.forward_ns,
        model_backward_ns=model_parallel.backward_ns,
        copy_ns=model_parallel.copy_ns,
    )


def _model_parallel_times(job: Job, hardware: Hardware, stack: UnitStack) -> BlockTimes | None:
    """Return the collective times of a block, scaled by the number of blocks per unit."""
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


def achieved_flops_per_s(job: Job, hardware: Hardware) -> float | None:
    """Return the achieved flop/s; None if the job computes in fp32 and the fp32 peak is unknown."""
    peak = hardware.peak_flops_per_s(job.element_bytes.parameter)
    return None if peak is None else peak * hardware.efficiency_ratio


class UnitMoment(Struct, frozen=True, kw_only=True):
    """Live bytes of a unit, without its weights, at one moment of its forward or backward pass.

    ``saved_bytes``: tensors saved for the backward pass. ``work_bytes``: temporary buffers. ``held_bytes``,
    not part of ``work_bytes``: a gradient that autograd keeps because another use of the same parameters
    follows. ``gradient_elements``: parameter-gradient elements produced so far. ``fresh_elements``: the part
    that autograd has not handed over yet.
    """

    operator: str
    saved_bytes: int
    work_bytes: int
    held_bytes: int = 0
    gradient_elements: int = 0
    fresh_elements: int = 0


class UnitMoments(Struct, frozen=True, kw_only=True):
    """Moments of a unit in order; the last moment of each pass is the state after the pass.

    A unit that encloses others runs one part of each pass before the enclosed units and one after
    (``*_end``). ``checkpointed``: the forward pass of a unit that saves only its input.
    """

    forward: tuple[UnitMoment, ...] = ()
    checkpointed: tuple[UnitMoment, ...] = ()
    forward_end: tuple[UnitMoment, ...] = ()
    backward: tuple[UnitMoment, ...] = ()
    backward_end: tuple[UnitMoment, ...] = ()


class OperatorStep(Struct, frozen=True, kw_only=True):
    """An operator: allocated bytes by name, names freed after it, and parameter-gradient elements."""

    operator: str
    makes: Mapping[str, int] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    gradient_elements: int = 0


def replay_operators(
    steps: Iterable[OperatorStep],
    *,
    saved: Collection[str],
    live: Mapping[str, int],
    made: int = 0,
) -> tuple[UnitMoment, ...]:
    """Return the moment after each step, and a final moment after the last tensors are freed.

    ``saved``: names saved by the forward pass for the backward pass. ``live``: live bytes before the first
    step, by name. ``made``: gradient elements already produced by then.
    """
    live_bytes = dict(live)
    moments: list[UnitMoment] = []
    for step in steps:
        live_bytes.update(step.makes)
        made += step.gradient_elements
        moments.append(_make_moment(step.operator, live_bytes, saved, made, step.gradient_elements))
        for name in step.drops:
            live_bytes.pop(name, None)
    return (*moments, _make_moment("end", live_bytes, saved, made, 0))


def with_gradients(moments: UnitMoments, part: int, total: int) -> UnitMoments:
    """Return the moments with gradients scaled to ``part`` of the unit's ``total`` elements."""

    def scale_gradients(moments_of_pass: tuple[UnitMoment, ...]) -> tuple[UnitMoment, ...]:
        return tuple(
            replace(
                moment,
                gradient_elements=ceil_div(moment.gradient_elements * part, total),
                fresh_elements=ceil_div(moment.fresh_elements * part, total),
            )
            for moment in moments_of_pass
        )

    return replace(
        moments,
        backward=scale_gradients(moments.backward),
        backward_end=scale_gradients(moments.backward_end),
    )


def saved_bytes_by_name(steps: Iterable[OperatorStep], saved: Collection[str]) -> Mapping[str, int]:
    """Return the bytes of the saved tensors that the steps allocate, by name."""
    return {name: size for step in steps for name, size in step.makes.items() if name in saved}


def find_max_work_bytes(moments: Iterable[UnitMoment]) -> int:
    """Return the maximum of temporary and held bytes over the moments."""
    return max((moment.work_bytes + moment.held_bytes for moment in moments), default=0)


def _make_moment(
    operator: str, live_bytes: Mapping[str, int], saved: Collection[str], made: int, fresh: int
) -> UnitMoment:
    saved_bytes = sum(size for name, size in live_bytes.items() if name in saved)
    return UnitMoment(
        operator=operator,
        saved_bytes=saved_bytes,
        work_bytes=sum(live_bytes.values()) - saved_bytes - live_bytes.get(HELD_GRADIENT, 0),
        held_bytes=live_bytes.get(HELD_GRADIENT, 0),
        gradient_elements=made,
        fresh_elements=fresh,
    )


def row_parallel(operator: str, name: str, sizes: ModelSizes) -> Iterator[OperatorStep]:
    """Yield a row-parallel product: the all-reduce, then the bias add, which allocates its result."""
    if sizes.ranks == 1:
        yield OperatorStep(operator=operator, makes={name: sizes.stream_bytes})
        return
    yield OperatorStep(operator=operator, makes={"summed": sizes.stream_bytes})
    yield OperatorStep(operator="add_bias", makes={name: sizes.stream_bytes}, drops=("summed",))


def copy_gradient(sizes: ModelSizes) -> Iterator[OperatorStep]:
    """Yield the all-reduce of the input gradient of a column-parallel layer, which runs on a copy."""
    if sizes.ranks > 1:
        yield OperatorStep(operator="all_reduce", makes={"copy": sizes.stream_bytes}, drops=("copy",))
