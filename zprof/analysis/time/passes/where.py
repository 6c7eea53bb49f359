"""Phase and micro-batch at an instant of a host, from the evidence on it; what is not known stays so."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s, Intervals, union
from zprof.analysis.time.activity.view import Mask
from zprof.analysis.time.passes.evidence import Evidence
from zprof.model.phases import Phase

UNKNOWN = "unknown"
BY_RANGES, BY_AUTOGRAD = "ranges", "autograd"
#: So many ranges that begin later and end sooner are looked through for one that holds an instant.
_DEEPEST = 64
#: In place of the begin of a range where there is none.
_NONE = np.iinfo(np.int64).min
#: Phase and method by the first question that is answered with yes, in the order in which they are asked.
_ANSWERS = (
    (Phase.OPTIMIZER.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_RANGES),
    (Phase.RECOMPUTE.value, BY_RANGES),
    (Phase.FORWARD.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_RANGES),
    (Phase.FORWARD.value, BY_RANGES),
    (Phase.BACKWARD.value, BY_AUTOGRAD),
    (UNKNOWN, UNKNOWN),
    (Phase.BACKWARD.value, BY_AUTOGRAD),
    (Phase.FORWARD.value, BY_AUTOGRAD),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """One entry an instant.  ``micro_batch`` is -1 where it is not known."""

    phase: Sequence[str]
    micro_batch: Int64s
    method: Sequence[str]


def where(evidence: Evidence, times_ns: Int64s, steps: Intervals) -> Where:
    """Where the step is at each instant; ``steps`` has the step of each, by the host's marks."""
    phase, method = _phases(evidence, times_ns, steps[:, 0])
    return Where(phase=phase, micro_batch=_micro_batches(evidence, times_ns, steps), method=method)


def _phases(evidence: Evidence, times: Int64s, step_begins: Int64s) -> tuple[list[str], list[str]]:
    """The innermost range that says it; else autograd; else what ran last in the step."""
    backward = _around(evidence.backward, times)
    recomputing = _around(evidence.recompute, times)
    forward = np.maximum(_around(evidence.forward, times), recomputing)
    in_forward, in_backward = forward != _NONE, backward != _NONE
    node = _holds(evidence.autograd, times)
    since = np.maximum(_last_begin(evidence.operators, times), _last_begin(evidence.optimizer, times))
    behind = _last_begin(evidence.autograd, times) > np.maximum(step_begins, since)
    asked = [
        _holds(evidence.optimizer, times),
        _holds(evidence.ahead_backward, times),
        in_forward & (node | (recomputing == forward) | in_backward) & ~(backward > forward),
        _holds(evidence.ahead_forward, times),
        in_backward,
        in_forward,
        node,
        np.full(len(times), not len(evidence.autograd)),
        behind,
        np.ones(len(times), np.bool_),
    ]
    first = np.argmax(asked, axis=0).tolist()
    return [_ANSWERS[place][0] for place in first], [_ANSWERS[place][1] for place in first]


def _last_begin(spans: Intervals, times: Int64s) -> Int64s:
    """When the last of these spans began, at each instant; -1 before all of them."""
    last = np.searchsorted(spans[:, 0], times, side="right")
    return np.concatenate(([-1], spans[:, 0]))[last]


def _holds(spans: Intervals, times: Int64s) -> Mask:
    """Whether one of these spans (by begin) holds each instant."""
    held: Mask = _around(spans, times) != _NONE
    return held


def _around(spans: Intervals, times: Int64s) -> Int64s:
    """For each instant the begin of the innermost of these spans (by begin) that holds it, else ``_NONE``."""
    found = np.full(len(times), _NONE, dtype=np.int64)
    reach = np.maximum.accumulate(spans[:, 1])
    row = np.searchsorted(spans[:, 0], times, side="right") - 1
    open_ = np.flatnonzero(row >= 0)
    for _ in range(_DEEPEST):
        # what neither this span nor any before it reaches, none holds
        open_ = open_[(row[open_] >= 0) & (times[open_] < reach[row[open_]])]
        if not len(open_):
            break
        holds = times[open_] < spans[row[open_], 1]
        found[open_[holds]] = spans[row[open_[holds]], 0]
        open_ = open_[~holds]
        row[open_] -= 1
    return found


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
