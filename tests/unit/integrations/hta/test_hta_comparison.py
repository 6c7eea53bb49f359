"""Figures of both side by side: when they are equal, when not, what is unknown, and known reasons."""

import json

import pytest
from msgspec.structs import replace

from zprof.analysis.time.rank import DeviceTotals
from zprof.integrations.hta.process import HtaAnswers, Rows, read_answers
from zprof.integrations.hta.verification import compare_rank, explain_differences
from zprof.model.report import FigureStatus

TOTALS = DeviceTotals(
    rank=3, span_ns=10_000_000, compute_ns=6_000_000, communication_ns=4_000_000, memory_ns=500_000,
    overlapped_ns=1_000_000, idle_ns=1_000_000,
)  # fmt: skip
ROWS = {"device": 4_000, "kept": 4_000, "resolution_ns": 1.0, "names": []}
TEMPORAL = {
    "span_ns": 10_000_000,
    "idle_ns": 1_000_000,
    "compute_ns": 6_000_000,
    "non_compute_ns": 3_000_000,
}
SAME = {
    "rows": ROWS,
    "overlap": {"percent": 25.0},
    "temporal": TEMPORAL,
    "kinds": {"communication_ns": 4_000_000, "memory_ns": 500_000},
}
EQUAL, DIFFERS, UNKNOWN = FigureStatus.EQUAL, FigureStatus.DIFFERS, FigureStatus.UNKNOWN


def said(**values) -> HtaAnswers:
    lines = [{"what": name, "value": value} for name, value in (SAME | values).items() if value is not None]
    return read_answers([json.dumps(line).encode() for line in lines], failure="it was ended")


def statuses(answers: HtaAnswers, totals: DeviceTotals = TOTALS) -> dict[str, FigureStatus]:
    verified, _ = compare_rank(totals, answers)
    return {figure.name: figure.status for figure in verified.figures}


def named(name: str, category: str, kind: str, total_ns: int = 5_000, count: int = 2) -> dict[str, object]:
    return {"name": name, "category": category, "kind": kind, "count": count, "total_ns": total_ns}


def reasons(**rows) -> list[str]:
    found = said(rows=ROWS | rows).get("rows", Rows)
    assert found is not None
    return list(explain_differences(found, equal_without_other=False))


def test_the_same_figures_are_equal_and_need_no_reason():
    verified, gaps = compare_rank(TOTALS, said())
    assert {figure.name: (figure.status, figure.difference) for figure in verified.figures} == {
        name: (EQUAL, 0)
        for name in (
            "overlap", "kernel span", "compute", "non-compute", "communication", "memory", "idle",
        )
    }  # fmt: skip
    assert (verified.rank, verified.device_rows, verified.reasons, gaps) == (3, 4_000, (), [])


@pytest.mark.parametrize(
    ("off_ns", "rows", "status"),
    [
        (4_000, {}, EQUAL),  # 1 us for 1000 rows
        (4_001, {}, DIFFERS),
        (-4_001, {}, DIFFERS),
        (999, {"device": 3}, EQUAL),  # at least 1 us
        (1_001, {"device": 3}, DIFFERS),
        (-35_600, {"resolution_ns": 250.0}, EQUAL),  # 4 us, and 2 x 250 ns x sqrt(4000)
        (-35_700, {"resolution_ns": 250.0}, DIFFERS),
    ],
)
def test_times_are_equal_within_what_rows_and_clock_round(off_ns, rows, status):
    temporal = TEMPORAL | {"compute_ns": 6_000_000 + off_ns}
    found = statuses(said(temporal=temporal, rows=ROWS | rows))
    assert (found["compute"], found["idle"]) == (status, EQUAL)


@pytest.mark.parametrize(
    ("percent", "status", "status_if_quiet"),
    [(25.01, EQUAL, DIFFERS), (24.99, EQUAL, DIFFERS), (25.02, DIFFERS, DIFFERS), (None, DIFFERS, EQUAL)],
)
def test_overlap_is_equal_within_its_rounding(percent, status, status_if_quiet):
    assert statuses(said(overlap={"percent": percent}))["overlap"] is status
    quiet = replace(TOTALS, communication_ns=0, overlapped_ns=0)
    assert statuses(said(overlap={"percent": percent}), quiet)["overlap"] is status_if_quiet


def test_what_hta_did_not_answer_is_unknown_and_one_gap():
    verified, gaps = compare_rank(TOTALS, said(overlap=None, temporal=None))
    unknown = {figure.name for figure in verified.figures if figure.status is UNKNOWN}
    assert unknown == {"overlap", "kernel span", "compute", "non-compute", "idle"}
    assert {figure.other for figure in verified.figures if figure.name in unknown} == {None}
    (gap,) = gaps
    assert (gap.rank, gap.what) == (3, "HTA (overlap, temporal)")
    assert "it was ended" in gap.reason


def test_reasons_name_what_hta_takes_for_something_else():
    names = [
        named("dma_compute_kernel", "kernel", "MEMORY"),
        named("multimem_all_reduce_kernel", "kernel", "COMPUTATION", 9_000),
        named("ncclDevKernel_AllGather_RING_LL(x)", "kernel", "COMMUNICATION"),
        named("Memcpy DtoH", "gpu_memcpy", "MEMORY"),
        named("Stream Wait Event", "cuda_sync", "COMPUTATION"),
        named("Event Sync", "cuda_sync", "OTHER"),
    ]
    found = reasons(kept=3_990, names=names)
    words = ("10 of 4000", "4 rows of cuda_sync", "multimem_all_reduce_kernel", "dma_compute_kernel")
    assert len(found) == len(words)
    assert all(word in reason for word, reason in zip(words, found, strict=True))
    verified, _ = compare_rank(
        TOTALS, said(rows=ROWS | {"kept": 3_990, "names": names}, overlap={"percent": 1.0})
    )
    assert list(verified.reasons) == found
    assert len(reasons(names=[named(f"dma{n}", "kernel", "MEMORY") for n in range(20)])) < 10


def test_rows_of_no_work_are_the_whole_reason_if_hta_agrees_without_them():
    other = {
        "rows": ROWS | {"names": [named("Event Sync", "cuda_sync", "OTHER", 5_000_000, 1)]},
        "overlap": {"percent": 30.0},
    }
    work = {name: SAME[name] for name in ("overlap", "temporal", "kinds")}
    found = []
    for answer in (work, work | {"overlap": {"percent": 29.0}}, None):
        verified, gaps = compare_rank(TOTALS, said(**other, work=answer))
        assert gaps == []
        found += verified.reasons
    assert found[0] != found[1] == found[2]
