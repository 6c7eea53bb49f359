"""What a gate reads: the quantity of the run and of the baseline, and the words that go with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zprof.checks.gates.figure import Figure, Samples, is_relative
from zprof.model.baseline import Baseline, MemoryBaseline, TimeBaseline
from zprof.model.check import Limit
from zprof.model.report import Report

_MOST_RANKS = 4
_Side = MemoryBaseline | TimeBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A limit, the run that is held against it, and the baseline.

    ``now`` is what the run would be as a baseline: both sides are read by the same code.
    """

    limit: Limit
    report: Report
    now: Baseline
    before: Baseline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """``now`` and ``before`` are None where they are not known; ``missing`` says why not, with a ``remedy``.

    ``samples`` are those of the run and of the baseline, one a step, for a limit with a confidence.
    ``where`` follows the value in the sentence.  ``only_warns``: why going beyond the limit is no failure.
    ``other_sort``: the value is a sum of other things than the baseline's, so that keeping within what it
    allows says too little and warns; ``grew`` names them.
    """

    now: Figure | None = None
    before: Figure | None = None
    missing: str = ""
    remedy: str = ""
    shown: Callable[[float], str]
    leaf: str = ""
    subject: str = ""
    where: str = ""
    grew: str = ""
    samples: tuple[Samples | None, Samples | None] = (None, None)
    only_warns: str = ""
    other_sort: bool = False


def lacking(now: Iterable[int], before: Iterable[int] = ()) -> tuple[int, ...]:
    """Of the ranks that are missing now, those that are not missing before."""
    return tuple(sorted(set(now) - set(before)))


def unseen(asked: Asked, now: _Side, before: _Side | None) -> tuple[int, ...]:
    """The ranks that the run should have and lacks: against a value all that are missing.

    Against a baseline those that it has: without the others both sides are of the same ranks.
    """
    excused = before.missing_ranks if before is not None and is_relative(asked.limit) else ()
    return lacking(now.missing_ranks, excused)


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``, ``ranks 1, 2, 3, 4 and 120 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"
