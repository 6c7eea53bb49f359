"""How often the data-parallel ranks of a scheme communicate in a step."""

from dataclasses import dataclass

from zprof.model.planning.plan import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often all parameters are gathered and all gradients reduced; an all-reduce is two reductions."""

    gathers: int
    reductions: int


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
