"""out_of_memory: the fix follows from what would have helped."""

import pytest

from tests.support.peaks import GIB, MIB, memory_run, tenants
from tests.support.rule_runs import found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.out_of_memory import CAUSE as out_of_memory
from zprof.diagnosis.diagnose import diagnose
from zprof.model.endings import OutOfMemory
from zprof.model.findings import Severity
from zprof.model.report import VerdictStatus


def failed(fits: bool | None, short: int | None = 0, **fields: object) -> OutOfMemory:
    values: dict[str, object] = {
        "rank": 0, "device": "cuda:0", "time_ns": 5, "requested_bytes": GIB, "driver_bytes": GIB,
        "device_free_bytes": 0, "live_bytes": 66 * MIB, "allocated_bytes": 70 * MIB, "awaiting_free_bytes": 0,
        "reserved_bytes": 4 * GIB, "split_bytes": 3 * GIB, "free_segments_bytes": 0, "private_pools_bytes": 0,
        "largest_free_bytes": 9 * MIB, "tenants": tenants(), "untagged_bytes": 0,
        "would_fit_defragmented": fits, "short_bytes": short,
    }  # fmt: skip
    return OutOfMemory(**(values | fields))  # type: ignore[arg-type]


def run(*failures: OutOfMemory) -> RunAnalysis:
    return memory_run(device="cuda:0", out_of_memory=failures)


FITS, FULL = failed(True), failed(False, 100 * MIB)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(FITS, "medium"), (FULL, "high"), (failed(None, None), "medium"), (None, None)],
)
def test_a_failed_allocation_is_a_finding(failure: OutOfMemory | None, expected: str | None) -> None:
    assert judged(out_of_memory, run(failure) if failure else run()) == expected


@pytest.mark.parametrize(
    ("failure", "words", "absent"),
    [
        (FITS, ("expandable_segments:True",), ("checkpoint",)),
        (failed(True, expandable=True), (), ("expandable_segments:True",)),
        (FULL, ("checkpoint", "100.0 MiB"), ("expandable", "RECORD_STREAMS")),
        (failed(False, MIB, awaiting_free_bytes=2 * MIB), ("RECORD_STREAMS",), ()),
        (failed(False, MIB, untagged_bytes=GIB), ("_record_memory_history",), ("checkpoint",)),
        (failed(None, None, is_limited=True), ("memory_fraction", "checkpoint"), ()),
        (failed(None, None, tenants={}, allocated_bytes=0), ("nvidia-smi",), ("_record_memory_history",)),
    ],
    ids=["fragmented", "already expandable", "full", "awaiting", "unknown owner", "limited", "first request"],
)
def test_the_fix_follows_from_what_would_have_helped(
    failure: OutOfMemory, words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    finding = found(out_of_memory, run(failure))
    assert all(word in finding.fix for word in words)
    assert not any(word in finding.fix for word in absent)
    assert (finding.id, finding.severity) == ("ZP210", Severity.HIGH)
    assert finding.saving_bytes == ((GIB, 3 * GIB) if failure.would_fit_defragmented else None)


def test_the_failure_that_lacks_most_is_reported_first_of_all_findings() -> None:
    worse = failed(False, 2 * GIB, rank=3)
    analysis = memory_run(tenants(buffers=80), device="cuda:0", out_of_memory=(FITS, worse, FULL))
    report = diagnose(analysis)
    assert report.findings[0].id == "ZP210"
    assert {fact.rank for fact in report.findings[0].evidence if fact.unit == "bytes"} == {3}
    assert report.verdict.status is VerdictStatus.RISK
    assert "2.0 GiB" in report.verdict.sentence
