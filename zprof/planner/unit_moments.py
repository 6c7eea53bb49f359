"""Compute the live bytes of a unit after each operator of its forward and backward.

A pass is a list of steps: an operator allocates tensors, then tensors die. The live bytes are taken after
each operator, while its inputs and outputs are both live, so the peak is one of these moments.

Split matrices of model parallelism add sums over the ranks: Megatron-LM, arXiv 1909.08053, section 3.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from zprof.planner.model_shapes import ModelSizes
from zprof.planner.rounding import ceil_div

#: Name of a gradient kept until another use of the same parameters produces its own.
HELD_GRADIENT = "held"


class UnitMoment(Struct, frozen=True, kw_only=True):
    """Live bytes of a unit, apart from its weights, at one moment of its forward or backward.

    ``saved_bytes``: tensors saved for the backward. ``work_bytes``: temporary buffers. ``held_bytes``, not
    part of ``work_bytes``: a gradient that autograd keeps because another use of the same parameters
    follows. ``gradient_elements``: parameter gradient elements produced so far. ``fresh_elements``: those
    that autograd has not handed over yet.
    """

    operator: str
    saved_bytes: int
    work_bytes: int
    held_bytes: int = 0
    gradient_elements: int = 0
    fresh_elements: int = 0


class UnitMoments(Struct, frozen=True, kw_only=True):
    """Moments of a unit in order; the last one of each pass is the state after the pass.

    A unit that encloses others has one part of each pass before the others' and one after (``*_end``).
    ``checkpointed``: the forward of a unit that saves only its input.
    """

    forward: tuple[UnitMoment, ...] = ()
    checkpointed: tuple[UnitMoment, ...] = ()
    forward_end: tuple[UnitMoment, ...] = ()
    backward: tuple[UnitMoment, ...] = ()
    backward_end: tuple[UnitMoment, ...] = ()


class OperatorStep(Struct, frozen=True, kw_only=True):
    """An operator: bytes it allocates by name, names that die after it, and parameter gradient elements."""

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
    """Return the moment after each step, and a final one after the last drops.

    ``saved``: names that the forward saves for the backward. ``live``: bytes live before the first step, by
    name. ``made``: gradient elements produced before it.
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
    """Return bytes by name of the saved tensors that the steps allocate."""
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
    """Yield a row-parallel product: the sum over the ranks, then the bias add, which allocates its result."""
    if sizes.ranks == 1:
        yield OperatorStep(operator=operator, makes={name: sizes.stream_bytes})
        return
    yield OperatorStep(operator=operator, makes={"summed": sizes.stream_bytes})
    yield OperatorStep(operator="add_bias", makes={name: sizes.stream_bytes}, drops=("summed",))


def copy_gradient(sizes: ModelSizes) -> Iterator[OperatorStep]:
    """Yield the all-reduce of a column-parallel layer's input gradient, which runs on a copy."""
    if sizes.ranks > 1:
        yield OperatorStep(operator="all_reduce", makes={"copy": sizes.stream_bytes}, drops=("copy",))
