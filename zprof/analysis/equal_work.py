"""Step times at equal work, and what else differs between two jobs.

A step of twice the tokens may take twice as long and be no slower.  Work is counted on a rank, because
that is what a device is paid for: tokens (else samples) of the whole job a step, over its ranks.  b's step
times are scaled by a's work on a rank over b's; the interval is that of the comparison, on scaled steps.
A larger batch also hides more communication, so this is the gain of both together: what sharding alone
does shows at an equal batch only.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from zprof.analysis.analysis import RunAnalysis
from zprof.model.equal_work import Difference, EqualWork, WorkUnit
from zprof.model.gaps import Gap

#: Step times of a and b in nanoseconds to the 95 % interval of mean(b) - mean(a).
Interval = Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64]], tuple[int, int]]
_FIELDS = ((WorkUnit.TOKENS, "tokens_per_step"), (WorkUnit.SAMPLES, "samples_per_step"))
_NOT_SAID = frozenset({"", "none", "unknown", "None"})


def equal_work(
    a: RunAnalysis,
    b: RunAnalysis,
    steps: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    interval: Interval,
) -> EqualWork | None:
    """``b`` for as much work on a rank as ``a`` does in a step; None where the work of one is not known."""
    known = _known(a, b)
    if known is None:
        return None
    unit, before, after = known
    scale = Fraction(before, a.run.world_size) / Fraction(after, b.run.world_size)
    walls = [rank.wall_ns for rank in b.time.per_rank]
    return EqualWork(
        unit=unit,
        a_per_step=before,
        b_per_step=after,
        b_ns=round(Fraction(sum(walls), len(walls)) * scale),
        ci95=interval(steps[0], steps[1] * float(scale)),
    )


def equal_work_gap(a: RunAnalysis, b: RunAnalysis) -> Gap | None:
    """That nobody can say whether both do the same work in a step."""
    if _known(a, b) is not None:
        return None
    silent = [run.run.name for run in (a, b) if not any(_work(run, field) for _, field in _FIELDS)]
    who = " and ".join(silent) or "one of the runs"
    return Gap(
        what="time at equal work",
        reason=f"how many tokens a step of {who} has is not known: a larger batch would look slower",
        remedy="say it: --tokens-per-step, --baseline-tokens-per-step, "
        "or zprof.record(training=TrainingFacts(…))",
    )


def differences(a: RunAnalysis, b: RunAnalysis) -> tuple[Difference, ...]:
    """What makes step times hard to compare, where both runs say it and do not say the same."""
    pairs = zip(_job(a), _job(b), strict=True)
    return tuple(
        Difference(what=what, a=before, b=after)
        for (what, before), (_, after) in pairs
        if before != after and not {before, after} & _NOT_SAID
    )


def _job(run: RunAnalysis) -> list[tuple[str, str]]:
    facts, training = run.run, run.training
    tokens, samples = training.tokens_per_step, training.samples_per_step
    sequence = f"{tokens / samples:g}" if tokens and samples else None
    spoken = training.engine not in _NOT_SAID  # 1 is also what stands there where nobody said anything
    return [
        ("ranks", str(facts.world_size)),
        ("ranks loaded", _ranks(facts.ranks_loaded, facts.world_size)),
        ("device", facts.device),
        ("backend", facts.backend),
        ("parameters", str(training.parameters)),
        ("model-parallel ranks", str(training.model_parallel_ranks if spoken else None)),
        ("micro-batches", str(training.micro_batches if spoken else None)),
        ("samples a step", str(samples)),
        ("tokens a step", str(tokens)),
        ("tokens a sample", str(sequence)),
        ("modelled", "; ".join(facts.modelled) or "nothing"),
    ]


def _ranks(loaded: tuple[int, ...], world_size: int) -> str:
    """``all`` of any number: how many there are is said apart."""
    if len(loaded) == world_size:
        return "all"
    shown = ",".join(map(str, loaded[:8]))
    return shown if len(loaded) <= 8 else f"{shown},.. ({len(loaded)})"


def _known(a: RunAnalysis, b: RunAnalysis) -> tuple[WorkUnit, int, int] | None:
    for unit, field in _FIELDS:
        before, after = _work(a, field), _work(b, field)
        if before and after:
            return unit, before, after
    return None


def _work(run: RunAnalysis, field: str) -> int | None:
    value = getattr(run.training, field)
    return value if isinstance(value, int) and value > 0 else None
