"""Phase and micro-batch at an instant of a host, from the evidence on it; what is not known stays so."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s, Intervals, union
from zprof.analysis.time.passes.evidence import Evidence
from zprof.model.phases import Phase

UNKNOWN = "unknown"
BY_RANGES, BY_AUTOGRAD = "ranges", "autograd"
#: So many ranges that begin later and end sooner are looked through for one that holds an instant.
_DEEPEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """One entry an instant.  ``micro_batch`` is -1 where it is not known."""

    phase: Sequence[str]
    micro_batch: Int64s
    method: Sequence[str]


def where(evidence: Evidence, times_ns: Int64s, steps: Intervals) -> Where:
    """Where the step is at each instant; ``steps`` has the step of each, by the host's marks."""
    begins = steps[:, 0].tolist()
    found = [_phase(evidence, time, begin) for time, begin in zip(times_ns.tolist(), begins, strict=True)]
    return Where(
        phase=[phase for phase, _ in found],
        micro_batch=_micro_batches(evidence, times_ns, steps),
        method=[method for _, method in found],
    )


def _phase(evidence: Evidence, time: int, step_begin: int) -> tuple[str, str]:
    """The innermost range that says it; else autograd; else what ran last in the step."""
    if _around(evidence.optimizer, time) is not None:
        return Phase.OPTIMIZER.value, BY_RANGES
    forward, backward = _around(evidence.forward, time), _around(evidence.backward, time)
    node = _around(evidence.autograd, time)
    ahead = _ahead(evidence, time)
    if ahead:
        return ahead, BY_RANGES
    if forward is not None and (node is not None or (backward is not None and backward < forward)):
        return Phase.RECOMPUTE.value, BY_RANGES
    if backward is not None or forward is not None:
        return (Phase.FORWARD if backward is None else Phase.BACKWARD).value, BY_RANGES
    if node is not None:
        return Phase.BACKWARD.value, BY_AUTOGRAD
    if not len(evidence.autograd):
        return UNKNOWN, UNKNOWN
    behind = _last_begin(evidence.autograd, time) > max(step_begin, _last_begin(evidence.operators, time))
    return (Phase.BACKWARD if behind else Phase.FORWARD).value, BY_AUTOGRAD


def _last_begin(spans: Intervals, time: int) -> int:
    """When the last of these spans began; -1 before all of them."""
    last = int(np.searchsorted(spans[:, 0], time, side="right"))
    return int(spans[last - 1, 0]) if last else -1


def _ahead(evidence: Evidence, time: int) -> str:
    if _around(evidence.ahead_backward, time) is not None:
        return Phase.BACKWARD.value
    return Phase.FORWARD.value if _around(evidence.ahead_forward, time) is not None else ""


def _around(spans: Intervals, time: int) -> int | None:
    """The begin of the innermost of these spans (by begin) that holds the instant."""
    last = int(np.searchsorted(spans[:, 0], time, side="right"))
    for row in range(last - 1, max(-1, last - 1 - _DEEPEST), -1):
        if time < spans[row, 1]:
            return int(spans[row, 0])
    return None


def _micro_batches(evidence: Evidence, times_ns: Int64s, steps: Intervals) -> Int64s:
    """How many forwards began after the first backward of the step, up to each instant.

    What runs after the last backward of a step is no further micro-batch: it has no backward.
    """
    forwards, backwards = _turns(evidence)
    first = np.searchsorted(backwards, steps[:, 0], side="left")
    in_step = np.searchsorted(backwards, steps[:, 1], side="left") - first
    if not len(backwards):
        return np.full(len(times_ns), -1, dtype=np.int64)
    begun = np.searchsorted(forwards, backwards[np.minimum(first, len(backwards) - 1)], side="right")
    number = np.clip(np.searchsorted(forwards, times_ns, side="right") - begun, 0, np.maximum(in_step - 1, 0))
    known: Int64s = np.where(in_step > 0, number, -1).astype(np.int64)
    return known


def _turns(evidence: Evidence) -> tuple[Int64s, Int64s]:
    """When forwards began after a backward, and backwards after a forward."""
    backward = evidence.in_backward
    forward = _outside(evidence.forward, backward) if len(evidence.forward) else evidence.operators
    times = np.concatenate((forward[:, 0], backward[:, 0]))
    is_forward = np.arange(len(times)) < len(forward)
    order = np.argsort(times, kind="stable")
    times, is_forward = times[order], is_forward[order]
    turned = np.flatnonzero(np.diff(is_forward.astype(np.int8))) + 1
    return times[turned[is_forward[turned]]], times[turned[~is_forward[turned]]]


def _outside(spans: Intervals, others: Intervals) -> Intervals:
    """Those that do not begin within any of the others."""
    merged = union(others)
    if not len(merged):
        return spans
    place = np.searchsorted(merged[:, 0], spans[:, 0], side="right") - 1
    inside = (place >= 0) & (spans[:, 0] < merged[np.maximum(place, 0), 1])
    return np.asarray(spans[~inside], dtype=np.int64)
