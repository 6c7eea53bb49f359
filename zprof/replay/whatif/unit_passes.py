"""Describe a measured step as passes: which unit computes, in which order, and what it needs and reduces.

A rank's step consists of a head, its passes, and a tail (the optimizer and everything after it). A unit that
encloses the others (the root) has two passes in a backward: before the others, where it needs its parameters,
and after them, where its gradients are complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Phase(StrEnum):
    """Phase of a pass; recomputation belongs to the backward."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSize:
    """A unit that is gathered and reduced in one piece; bytes are of the full tensors on the wire."""

    name: str
    gather_bytes: float
    reduce_bytes: float
    encloses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a unit.

    ``needs``: the pass needs the unit's parameters. ``reduces``: the unit's gradients are complete after it.
    """

    phase: Phase
    unit: int
    micro_batch: int = 0
    needs: bool = True
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Time of each rank that is not blocked by sharding traffic, in ns.

    ``passes`` is [pass, step, rank]; the others are [step, rank]. ``between``: from one step to the next.
    """

    head: Floats
    passes: Floats
    tail: Floats
    between: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPasses:
    """Passes of a step, with the work of all modelled ranks and steps."""

    units: tuple[UnitSize, ...]
    passes: tuple[Pass, ...]
    work: PassWork
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    micro_batches: int = 1


def list_passes(
    units: Sequence[UnitSize], backward: Sequence[int], micro_batches: int, reduce_each: bool
) -> tuple[Pass, ...]:
    """Return all passes of a step.

    ``units`` are in forward order; ``backward`` lists the inner units in backward order.
    """
    passes: list[Pass] = []
    enclosing = [index for index, unit in enumerate(units) if unit.encloses]
    for number in range(micro_batches):
        reduces = reduce_each or number == micro_batches - 1
        passes += [Pass(phase=Phase.FORWARD, unit=unit, micro_batch=number) for unit in range(len(units))]
        passes += [Pass(phase=Phase.BACKWARD, unit=unit, micro_batch=number) for unit in enclosing]
        passes += [
            Pass(phase=Phase.BACKWARD, unit=unit, micro_batch=number, reduces=reduces) for unit in backward
        ]
        passes += [
            Pass(phase=Phase.BACKWARD, unit=unit, micro_batch=number, needs=False, reduces=reduces)
            for unit in reversed(enclosing)
        ]
    return tuple(passes)
