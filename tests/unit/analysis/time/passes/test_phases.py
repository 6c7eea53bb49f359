"""The phase at an instant: by ranges of the program, by autograd, and unknown without either."""

import numpy as np
import pyarrow as pa
import pytest

from tests.support.device_ranks import Rows
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s, Intervals
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.steps import (
    PhaseEvidence,
    collect_phase_evidence,
    locate_instants,
)


def spans(*pairs: tuple[int, int]) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def at(
    evidence: PhaseEvidence, *times: int, step: tuple[int, int] = (0, 1000)
) -> tuple[list[str], list[str], Int64s]:
    return locate_instants(evidence, np.array(times, dtype=np.int64), spans(*[step] * len(times)))


PHASES: dict[str, tuple[dict[str, Intervals], dict[int, str]]] = {
    "nothing known": ({}, {5: "unknown"}),
    "ranges of the program": (
        {"forward": spans((10, 20)), "backward": spans((50, 60))},
        {15: "forward", 55: "backward"},
    ),
    "a prefetch serves the pass that it names": (
        {"forward": spans((10, 20)), "ahead_backward": spans((14, 16)), "backward": spans((50, 60))},
        {12: "forward", 15: "backward"},
    ),
    "a forward within a backward": (
        {"forward": spans((55, 57)), "backward": spans((50, 60))},
        {56: "recompute"},
    ),
    "a forward within autograd": (
        {"forward": spans((55, 57)), "autograd": spans((50, 60))},
        {56: "recompute"},
    ),
    "a backward within a forward": (
        {"forward": spans((10, 60)), "backward": spans((20, 30))},
        {25: "backward"},
    ),
    "the optimizer comes first": (
        {"optimizer": spans((80, 90)), "forward": spans((70, 95))},
        {85: "optimizer"},
    ),
    "nodes of autograd": (
        {"autograd": spans((50, 60), (70, 80)), "operators": spans((10, 20), (90, 95))},
        {5: "forward", 15: "forward", 55: "backward", 65: "backward", 97: "forward"},
    ),
}


@pytest.mark.parametrize("name", PHASES)
def test_phases(name: str) -> None:
    evidence, expected = PHASES[name]
    phases, methods, _ = at(PhaseEvidence(**evidence), *expected)
    assert dict(zip(expected, phases, strict=True)) == expected
    method = (
        "unknown" if not evidence else "autograd" if {"autograd", "operators"} == {*evidence} else "ranges"
    )
    assert set(methods) == {method} or name == "a forward within autograd"


TWO_BACKWARDS = PhaseEvidence(
    operators=spans((10, 20), (110, 120), (210, 220), (1010, 1020), (1110, 1120)),
    autograd=spans((50, 60), (70, 80), (150, 160), (1050, 1060), (1150, 1160)),
)


@pytest.mark.parametrize(
    ("evidence", "step", "expected"),
    [
        (TWO_BACKWARDS, (0, 1000), {15: 0, 55: 0, 75: 0, 115: 1, 155: 1, 215: 1}),
        (TWO_BACKWARDS, (1000, 2000), {1015: 0, 1155: 1}),
        (
            PhaseEvidence(forward=spans((10, 20), (55, 57)), autograd=spans((50, 60), (70, 80))),
            (0, 1000),
            {75: 0},
        ),
        (PhaseEvidence(forward=spans((10, 20))), (0, 1000), {15: -1}),
    ],
    ids=["by backward", "from the begin of a step", "recomputation is none", "unknown without a backward"],
)
def test_micro_batches(evidence: PhaseEvidence, step: tuple[int, int], expected: dict[int, int]) -> None:
    assert at(evidence, *expected, step=step)[2].tolist() == list(expected.values())


NO_MARKS = Columns.from_arrow(Rows().marks_table())


def collected(*rows: tuple[str, int, int], thread: int = 1) -> PhaseEvidence:
    """Evidence from (name, begin, end) of annotations; those of a backward are on ``thread``."""
    events = Rows()
    for name, begin, end in rows:
        mine = thread if begin >= 90 else 1
        events.event(begin, end, "user_annotation", name, thread=mine)
    table: pa.Table = events.events_table()
    return collect_phase_evidence(table, NO_MARKS, RankClock())


@pytest.mark.parametrize("thread", [1, 2])
def test_recomputation_outside_of_the_nodes_of_autograd_is_no_micro_batch(thread: int) -> None:
    """Each unit's forward runs again right before its backward: on autograd's thread, or on the only one."""
    rows = [(f"FSDP::pre_forward (layers.{unit})", 10 * unit, 10 * unit + 5) for unit in range(3)]
    rows.append(("FSDP::pre_backward (root)", 90, 95))
    for place, unit in enumerate((2, 1, 0)):
        begin = 100 + 20 * place
        rows.append((f"FSDP::pre_forward (layers.{unit})", begin, begin + 5))
        rows.append((f"FSDP::post_backward (layers.{unit})", begin + 10, begin + 15))
    phases, _, micro_batches = at(collected(*rows, thread=thread), 2, 22, 102, 112, 122, 142, 152)
    assert " ".join(phases) == "forward forward recompute backward recompute recompute backward"
    assert set(micro_batches.tolist()) == {0}


def test_a_forward_of_some_units_behind_the_optimizer_recomputes_nothing() -> None:
    evidence = collected(
        ("FSDP::pre_forward (layers.0)", 0, 5),
        ("FSDP::pre_forward (layers.1)", 10, 15),
        ("FSDP::post_backward (layers.1)", 20, 25),
        ("Optimizer.step#AdamW.step", 30, 40),
        ("FSDP::pre_forward (layers.0)", 50, 55),
    )
    assert at(evidence, 52)[0] == ["forward"]


@pytest.mark.parametrize(("times", "forward"), [((100, 200, 300), []), ((1000, 1200, 1300), [[1000, 1200]])])
def test_phases_marked_before_the_timed_steps_are_not_theirs(
    times: tuple[int, ...], forward: list[list[int]]
) -> None:
    events = Rows().event(1000, 1100, "cpu_op", "aten::mm").event(1200, 1300, "cpu_op", "MmBackward0")
    names = ["forward", "backward", "optimizer"]
    rows = [{"time_ns": time, "kind": "phase", "name": name} for time, name in zip(times, names, strict=True)]
    marks = Columns.from_rows(rows, ("time_ns", "kind", "name"))
    evidence = collect_phase_evidence(events.events_table(), marks, RankClock())
    assert evidence.forward.tolist() == forward
