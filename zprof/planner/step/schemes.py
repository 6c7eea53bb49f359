"""What a scheme is to time: the stage of its data-parallel ranks, and how often they communicate."""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.planning.plan import Scheme

_STAGES: Mapping[Scheme, int] = {Scheme.ZERO_1: 1, Scheme.ZERO_2: 2, Scheme.ZERO_3: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often all parameters are gathered and all gradients reduced; an all-reduce is two reductions."""

    gathers: int
    reductions: int


def stage_of(scheme: Scheme) -> int:
    """Of ZeRO; model parallelism and pipelines have plain data parallelism around them."""
    return _STAGES.get(scheme, 0)


def times_of(scheme: Scheme, micro_batches: int) -> Times:
    """In a step (arXiv 1910.02054, section 7.2; with micro-batches see ``overlap``).

    PipeDream updates with every micro-batch, so that it reduces as often (arXiv 1806.03377, section 3.3).
    """
    match scheme:
        case Scheme.ZERO_1:
            return Times(gathers=1, reductions=1)
        case Scheme.ZERO_2:
            return Times(gathers=1, reductions=micro_batches)
        case Scheme.ZERO_3:
            return Times(gathers=2 * micro_batches, reductions=micro_batches)
        case Scheme.PIPEDREAM:
            return Times(gathers=0, reductions=2 * micro_batches)
        case _:
            return Times(gathers=0, reductions=2)
