"""A job that is stuck, in a run with times and memory: why it is stuck is the answer, and the only one."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario
from tests.support.rule_runs import explain_hang, run_of
from zprof.diagnosis.diagnose import diagnose
from zprof.model.endings import OutOfMemory
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import EnteredSide, Hang, HangClass, HangStatus, RankAtHang, StuckOperation
from zprof.model.memory import Memory
from zprof.planner.whatif import add_outlook
from zprof.reports.pages.diagnosis import build_diagnosis_page

#: Without the hang it has a straggler.
SLOW = Scenario(delay_ms={1: 20.0})
OPERATION = StuckOperation(
    operation="all_reduce",
    group="0",
    description="",
    role="",
    ranks=(0, 1),
    sequence=12,
    sizes="[[4]]",
    dtypes="Float",
    entered=(0,),
    late=(1,),
    size=2,
)
HANG = Hang(
    status=HangStatus.STUCK,
    kind=HangClass.HOST_STUCK,
    confidence=Confidence.HIGH,
    operations=(OPERATION,),
    culprits=(RankAtHang(rank=1, operation=0),),
    victims=(0,),
    stall_ns=3_000_000_000,
)


def test_causes_of_a_running_step_are_not_listed_for_a_dead_job() -> None:
    running = run_of(SLOW)
    assert diagnose(running).findings
    report = diagnose(replace(running, hang=HANG))
    assert [each.id for each in report.findings] == ["ZP602"]
    assert report.findings[0].sentence in report.verdict.sentence
    assert report.time.per_rank == running.time.per_rank  # what was measured stays
    assert not report.unclaimed
    assert add_outlook(report, running) is report
    anchors = [section.anchor for section in build_diagnosis_page(report).sections]
    assert anchors[0] == "hang"
    assert not {"ledger", "path", "unexplained"}.intersection(anchors)


def test_a_failed_allocation_that_ended_a_rank_stays_beside_the_hang() -> None:
    failure = OutOfMemory(
        rank=1,
        device="cuda:0",
        time_ns=0,
        requested_bytes=1 << 30,
        driver_bytes=1 << 30,
        device_free_bytes=None,
        live_bytes=1 << 30,
        allocated_bytes=1 << 30,
        awaiting_free_bytes=0,
        reserved_bytes=None,
        split_bytes=None,
        free_segments_bytes=None,
        private_pools_bytes=None,
        largest_free_bytes=None,
        tenants={},
        untagged_bytes=1 << 30,
        would_fit_defragmented=None,
        short_bytes=None,
        is_limited=False,
    )
    caught = replace(run_of(SLOW), hang=HANG, memory=Memory(out_of_memory=(failure,)))
    assert [each.id for each in diagnose(caught).findings] == ["ZP602"]
    gap = Gap(kind=GapKind.PROGRAM_FAILED, what="", reason="", remedy="", rank=1)
    ended = replace(caught, gaps=(*caught.gaps, gap))
    assert [each.id for each in diagnose(ended).findings] == ["ZP602", "ZP210"]


@pytest.mark.parametrize("status", [HangStatus.RESUMED, HangStatus.FINISHED, HangStatus.UNKNOWN])
def test_a_job_that_is_not_stuck_keeps_its_causes(status: HangStatus) -> None:
    running = run_of(SLOW)
    causes = [each.cause for each in diagnose(running).findings]
    assert causes
    assert [each.cause for each in diagnose(replace(running, hang=Hang(status=status))).findings] == causes


def test_a_fix_of_a_watched_run_names_the_line_and_does_not_ask_to_watch_it() -> None:
    line = SourceLocation(file="train.py", line=40, function="hold")
    side = EnteredSide(ranks=(0,), operation="all_reduce", sequence=12, sizes="[[4]]", dtypes="Float")
    watched = replace(HANG, culprits=(RankAtHang(rank=1, operation=0, location=line),), sides=(side,))
    dumps = replace(HANG, stall_ns=None)
    assert "train.py:40" in explain_hang(watched).fix
    for kind in HangClass:
        assert "--watch" not in explain_hang(replace(watched, kind=kind)).fix
        assert "doctor" not in explain_hang(replace(watched, kind=kind)).fix
    assert "--watch" in explain_hang(dumps).fix  # what dumps do not have
