"""Figures of both side by side: when they are equal, when not, what is unknown, and known reasons."""

import json
from dataclasses import replace

import pytest

from zprof.analysis.time.device_totals import DeviceTotals
from zprof.integrations.hta.answers import Answers, Rows, read_answers
from zprof.integrations.hta.verification import compare_rank, explain_differences
from zprof.model.second_opinion import FigureStatus, Verification

TOTALS = DeviceTotals(
    rank=3, span_ns=10_000_000, compute_ns=6_000_000, communication_ns=4_000_000, memory_ns=500_000,
    overlapped_ns=1_000_000, idle_ns=1_000_000,
)  # fmt: skip
ROWS = {"device": 4_000, "kept": 4_000, "resolution_ns": 1.0, "names": []}
SAME = {
    "rows": ROWS,
    "overlap": {"percent": 25.0},
    "temporal": {
        "span_ns": 10_000_000,
        "idle_ns": 1_000_000,
        "compute_ns": 6_000_000,
        "non_compute_ns": 3_000_000,
    },
    "kinds": {"communication_ns": 4_000_000, "memory_ns": 500_000},
}
EQUAL, DIFFERS, UNKNOWN = FigureStatus.EQUAL, FigureStatus.DIFFERS, FigureStatus.UNKNOWN


def said(**values) -> Answers:
    lines = [{"what": name, "value": value} for name, value in (SAME | values).items() if value is not None]
    return read_answers([json.dumps(line).encode() for line in lines], ended="it was ended")


def statuses(answers: Answers, totals: DeviceTotals = TOTALS) -> dict[str, FigureStatus]:
    verified, _ = compare_rank(totals, answers)
    return {figure.name: figure.status for figure in verified.figures}


def test_the_same_figures_are_equal_and_need_no_reason():
    verified, gaps = compare_rank(TOTALS, said())
    assert {figure.status for figure in verified.figures} == {EQUAL}
    assert {figure.difference for figure in verified.figures} == {0}
    assert (verified.rank, verified.device_rows, verified.reasons, gaps) == (3, 4_000, (), [])
    assert [figure.name for figure in verified.figures] == [
        "overlap", "kernel span", "compute", "non-compute", "communication", "memory", "idle",
    ]  # fmt: skip


@pytest.mark.parametrize(("off_ns", "status"), [(4_000, EQUAL), (-4_000, EQUAL), (4_001, DIFFERS)])
def test_times_are_equal_within_a_microsecond_for_1000_rows(off_ns, status):
    temporal = SAME["temporal"] | {"compute_ns": 6_000_000 + off_ns}
    found = statuses(said(temporal=temporal))
    assert found["compute"] is status
    assert found["idle"] is EQUAL


def test_a_coarse_clock_and_few_rows_forgive_what_they_must():
    # 4000 rows: 4 us, and twice 250 ns for the square root of the rows.
    for off_ns, status in ((35_600, EQUAL), (35_700, DIFFERS)):
        temporal = SAME["temporal"] | {"compute_ns": 6_000_000 - off_ns}
        coarse = ROWS | {"resolution_ns": 250.0}
        assert statuses(said(temporal=temporal, rows=coarse))["compute"] is status
    near = SAME["temporal"] | {"compute_ns": 6_000_999}
    assert statuses(said(temporal=near, rows=ROWS | {"device": 3}))["compute"] is EQUAL
    far = SAME["temporal"] | {"compute_ns": 6_001_001}
    assert statuses(said(temporal=far, rows=ROWS | {"device": 3}))["compute"] is DIFFERS


@pytest.mark.parametrize(
    ("percent", "status"), [(25.01, EQUAL), (24.99, EQUAL), (25.02, DIFFERS), (None, DIFFERS)]
)
def test_overlap_is_equal_within_its_rounding(percent, status):
    assert statuses(said(overlap={"percent": percent}))["overlap"] is status


def test_no_communication_for_both_is_equal():
    quiet = replace(TOTALS, communication_ns=0, overlapped_ns=0)
    assert statuses(said(overlap={"percent": None}), quiet)["overlap"] is EQUAL
    assert statuses(said(overlap={"percent": 3.0}), quiet)["overlap"] is DIFFERS


def test_what_hta_did_not_say_is_unknown_and_one_gap_a_failure():
    verified, gaps = compare_rank(TOTALS, said(temporal=None, overlap=None))
    found = {figure.name: figure for figure in verified.figures}
    assert {name for name, figure in found.items() if figure.status is UNKNOWN} == {
        "overlap", "kernel span", "compute", "non-compute", "idle",
    }  # fmt: skip
    assert found["compute"].zprof == 6_000_000
    assert found["compute"].other is found["compute"].difference is None
    (gap,) = gaps
    assert (gap.rank, gap.what) == (3, "HTA (overlap, temporal)")
    assert "it was ended" in gap.reason


def test_the_whole_differs_where_one_figure_does_and_is_unknown_where_none_is_known():
    def verification(*answers: Answers) -> FigureStatus:
        ranks = tuple(compare_rank(TOTALS, answer)[0] for answer in answers)
        return Verification(zprof_version="0", source="HTA", settings="", window="", ranks=ranks).status

    nothing = said(rows=None, overlap=None, temporal=None, kinds=None)
    assert verification(said(), nothing) is EQUAL
    assert verification(said(), said(overlap={"percent": 1.0})) is DIFFERS
    assert verification(nothing) is UNKNOWN
    assert verification() is UNKNOWN


def test_reasons_name_what_hta_takes_for_something_else():
    def row(name, category, kind, total_ns=5_000, count=2):
        return {"name": name, "category": category, "kind": kind, "count": count, "total_ns": total_ns}

    names = [
        row("dma_compute_kernel", "kernel", "MEMORY"),
        row("multimem_all_reduce_kernel", "kernel", "COMPUTATION", 9_000),
        row("ncclDevKernel_AllGather_RING_LL(x)", "kernel", "COMMUNICATION"),
        row("Memcpy DtoH", "gpu_memcpy", "MEMORY"),
        row("Stream Wait Event", "cuda_sync", "COMPUTATION"),
        row("Event Sync", "cuda_sync", "OTHER"),
    ]
    answers = said(rows=ROWS | {"kept": 3_990, "names": names}, overlap={"percent": 1.0})
    found = list(explain_differences(answers.get("rows", Rows), equal_without=False))
    assert "10 of 4000 rows of the device" in found[0]
    assert "4 rows of cuda_sync" in found[1]
    assert "multimem_all_reduce_kernel" in found[2]
    assert "dma_compute_kernel" in found[3]
    assert len(found) == 4
    assert list(compare_rank(TOTALS, answers)[0].reasons) == found
    many = [row(f"dma{n}", "kernel", "MEMORY") for n in range(20)]
    assert (
        len(
            list(
                explain_differences(said(rows=ROWS | {"names": many}).get("rows", Rows), equal_without=False)
            )
        )
        < 10
    )


def test_rows_of_no_work_are_the_whole_reason_where_hta_agrees_without_them():
    sync = {"name": "Event Sync", "category": "cuda_sync", "kind": "OTHER", "count": 1, "total_ns": 5_000_000}
    other = {"rows": ROWS | {"names": [sync]}, "overlap": {"percent": 30.0}}
    work = {name: SAME[name] for name in ("overlap", "temporal", "kinds")}
    (reason,) = compare_rank(TOTALS, said(**other, work=work))[0].reasons
    assert "1 row of cuda_sync" in reason
    assert "without them HTA says the same" in reason
    for wrong in (work | {"overlap": {"percent": 29.0}}, None):
        verified, gaps = compare_rank(TOTALS, said(**other, work=wrong))
        assert "says the same" not in verified.reasons[0]
        assert gaps == []
