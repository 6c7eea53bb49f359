"""A stall is a hang only if no rank is known to have gone on: by its mark, or by a step that ended later."""

import time
from pathlib import Path

import pytest

from zprof.analysis.hang.find_hang import find_hang
from zprof.collectors.record.watch.shared_files import BareRank, make_bare_manifest
from zprof.model.hang import HangStatus
from zprof.run.manifest import STEPS_NAME, StepLine, encode_step, rank_folder
from zprof.run.reader import load
from zprof.run.schema import TABLES

SECOND = 10**9
EMPTY = {
    name: {column: [] for column in TABLES[name].names}
    for name in ("flight", "flight_group", "flight_stack", "flight_thread")
}
STUCK, RESUMED = ["stuck"], ["stuck", "resumed"]


def record(run: Path, marks: list[list[str]]) -> None:
    for rank, kinds in enumerate(marks):
        writer = BareRank(run, rank, make_bare_manifest(len(marks), "gloo", "job"))
        for kind in kinds:
            writer.save_stall(kind, 3 * SECOND, EMPTY if kind == "stuck" else {}, ())


def end_step(run: Path, rank: int, at_ns: int) -> None:
    line = encode_step(StepLine(step=4, begin_ns=0, end_ns=at_ns))
    (rank_folder(run, rank) / STEPS_NAME).write_bytes(line)


@pytest.mark.parametrize(
    ("marks", "status"),
    [
        ([RESUMED, RESUMED], HangStatus.RESUMED),
        ([RESUMED, STUCK], HangStatus.RUNNING),
        ([[*RESUMED, "stuck"], STUCK], HangStatus.FINISHED),  # nothing is pending in these tables
    ],
)
def test_all_ranks_must_have_gone_on(marks: list[list[str]], status: HangStatus, tmp_path: Path) -> None:
    record(tmp_path / "a.zprof", marks)
    hang = find_hang(load(tmp_path / "a.zprof"))
    assert hang is not None
    assert hang.status is status
    assert hang.stall_ns == 3 * SECOND


@pytest.mark.parametrize(("later_ns", "is_over"), [(SECOND, True), (-60 * SECOND, False)])
def test_a_step_that_ended_later_ends_a_stall(later_ns: int, is_over: bool, tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    record(run, [STUCK, STUCK])
    for rank in range(2):
        end_step(run, rank, time.time_ns() + later_ns)
    hang = find_hang(load(run))
    assert hang is not None
    assert (hang.status is HangStatus.RESUMED) is is_over
