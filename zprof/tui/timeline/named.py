"""Lanes that names are written into: phases of the step, and units of the model, where ranges tell them."""

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import Int64s, intervals
from zprof.analysis.time.activity.view import Mask
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.analysis.time.passes.evidence import Evidence, evidence_of
from zprof.analysis.time.passes.where import UNKNOWN, where
from zprof.run.ranges import RangeVerb, parse_range
from zprof.tui.timeline.items import Kind, items_of
from zprof.tui.timeline.kinds import Sorted
from zprof.tui.timeline.lane import Lane, LaneKind


def phase_lane(
    events: pa.Table, marks: pd.DataFrame, clock: RankClock, begin_ns: int, end_ns: int, *, on_device: bool
) -> Lane | None:
    """Forward, backward, optimizer as the host went through them; None where nothing tells."""
    evidence = evidence_of(events, marks, clock)
    edges = _edges(evidence, begin_ns, end_ns)
    steps = np.tile(np.array([[begin_ns, end_ns]], dtype=np.int64), (len(edges), 1))
    phases = np.array(where(evidence, edges, steps).phase)
    if (phases == UNKNOWN).all():
        return None
    turns = np.flatnonzero(np.concatenate(([True], phases[1:] != phases[:-1])))
    begins = edges[turns]
    spans = intervals(begins, np.append(begins[1:], end_ns)) - begin_ns
    label = "cpu phase" if on_device else "phase"
    return _lane(LaneKind.PHASES, label, "phases of the host", spans, [str(p) for p in phases[turns]])


def unit_lane(found: Sorted, start_ns: Int64s, end_ns: Int64s, inside: Mask, length_ns: int) -> Lane | None:
    """Units by the ranges of an engine that say which one computes; None where there are none."""
    view = found.view
    rows = inside & view.category_is("user_annotation") & (view.thread == found.main)
    rows = np.flatnonzero(view.name_is(rows, lambda name: _unit(name) is not None))
    if not len(rows):
        return None
    names, code = view.coded(rows)
    units = [_unit(name) or "" for name in names]
    spans = np.clip(intervals(start_ns[rows], end_ns[rows]), 0, length_ns)
    named = [units[place] for place in code.tolist()]
    return _lane(LaneKind.UNITS, "unit", "units of the model", spans, named)


def _lane(kind: LaneKind, label: str, title: str, spans: Int64s, names: list[str]) -> Lane:
    kinds = np.full(len(spans), Kind.RANGE, dtype=np.int8)
    items = items_of(spans[:, 0], spans[:, 1], np.arange(len(spans)), kinds)
    return Lane(key=label, label=label, title=title, kind=kind, covers={}, items=items, names=tuple(names))


def _edges(evidence: Evidence, begin_ns: int, end_ns: int) -> Int64s:
    """All instants of the step at which the phase may change."""
    sets = (
        evidence.forward,
        evidence.backward,
        evidence.ahead_forward,
        evidence.ahead_backward,
        evidence.autograd,
        evidence.optimizer,
        evidence.operators,
    )
    times = np.concatenate([spans.ravel() for spans in sets])
    inside = times[(times > begin_ns) & (times < end_ns)]
    return np.unique(np.concatenate((np.array([begin_ns], dtype=np.int64), inside)))


def _unit(name: str) -> str | None:
    found = parse_range(name)
    return found.unit if found is not None and found.verb is RangeVerb.COMPUTE else None
