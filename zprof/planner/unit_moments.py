"""Live bytes of a unit after each operator of its forward and backward.

A pass is written down as steps: an operator makes tensors, then tensors die.  Playing them gives the live
bytes after each operator, when what it reads and what it made are both there: the highest are among these.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from zprof.planner.rounding import ceil_div

#: The name of a gradient that waits for another one of the same parameters.
HELD = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is live of a unit, beside its weights, at one moment of its forward or backward.

    ``saved_bytes``: of what its forward keeps; ``work_bytes``: temporary buffers, and ``held_bytes`` beside
    them: a gradient that autograd keeps for itself, as another use of the same parameters is still to come.
    ``gradient_elements``: of its parameters' gradients, made so far; ``fresh_elements``: those of them that
    autograd has not handed over yet.
    """

    operator: str
    saved_bytes: int
    work_bytes: int
    held_bytes: int = 0
    gradient_elements: int = 0
    fresh_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The moments of a unit in their order; the last of each pass is what stays behind it.

    A unit that encloses others has a part of each pass before theirs and one after them (``*_end``).
    ``checkpointed``: the forward of a unit that keeps its input only.
    """

    forward: tuple[Moment, ...] = ()
    checkpointed: tuple[Moment, ...] = ()
    forward_end: tuple[Moment, ...] = ()
    backward: tuple[Moment, ...] = ()
    backward_end: tuple[Moment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStep:
    """An operator: bytes that it makes by name, the names that die with it, and parameter gradients."""

    operator: str
    makes: Mapping[str, int] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    gradient_elements: int = 0


def play_operators(
    steps: Iterable[OperatorStep],
    *,
    saved: Collection[str],
    live: Mapping[str, int],
    made: int = 0,
) -> tuple[Moment, ...]:
    """The moment of each step, and the one behind the last.

    ``saved``: names of what the forward keeps.  ``live``: what is there before, by name; ``made``: elements
    of gradients that are.
    """
    there = dict(live)
    moments: list[Moment] = []
    for step in steps:
        there.update(step.makes)
        made += step.gradient_elements
        moments.append(_make_moment(step.operator, there, saved, made, step.gradient_elements))
        for name in step.drops:
            there.pop(name, None)
    return (*moments, _make_moment("end", there, saved, made, 0))


def with_gradients(moments: Moments, part: int, whole: int) -> Moments:
    """The same where so many of the unit's elements have a gradient: of each operator's the same share."""

    def fewer(passed: tuple[Moment, ...]) -> tuple[Moment, ...]:
        return tuple(
            replace(
                moment,
                gradient_elements=ceil_div(moment.gradient_elements * part, whole),
                fresh_elements=ceil_div(moment.fresh_elements * part, whole),
            )
            for moment in passed
        )

    return replace(moments, backward=fewer(moments.backward), backward_end=fewer(moments.backward_end))


def saved_bytes_by_name(steps: Iterable[OperatorStep], saved: Collection[str]) -> Mapping[str, int]:
    """Bytes of what the steps make and is kept."""
    return {name: size for step in steps for name, size in step.makes.items() if name in saved}


def highest_work(moments: Iterable[Moment]) -> int:
    """The most temporary bytes of all moments."""
    return max((moment.work_bytes + moment.held_bytes for moment in moments), default=0)


def _make_moment(
    operator: str, there: Mapping[str, int], saved: Collection[str], made: int, fresh: int
) -> Moment:
    kept = sum(size for name, size in there.items() if name in saved)
    return Moment(
        operator=operator,
        saved_bytes=kept,
        work_bytes=sum(there.values()) - kept - there.get(HELD, 0),
        held_bytes=there.get(HELD, 0),
        gradient_elements=made,
        fresh_elements=fresh,
    )
