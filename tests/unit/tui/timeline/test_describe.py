"""What is said of an event, a collective, a gap."""

from pathlib import Path

import pytest

from tests.support.device_ranks import Rows, write_run
from zprof.analysis.analysis import analyse_time_alone
from zprof.model.formatting import format_ns
from zprof.run.reader import load
from zprof.tui.session import LoadedRun
from zprof.tui.timeline.build import build
from zprof.tui.timeline.describe import (
    describe_collective,
    describe_event,
    describe_gap,
    describe_item,
    describe_target,
)
from zprof.tui.timeline.lane import Lane, LaneKind, Role
from zprof.tui.timeline.step_model import StepModel, get_gap
from zprof.tui.timeline.view import find_cursor_target, make_first_view

EVIL = "a\x1b[2J[bold]b\u202e\nc"


@pytest.fixture
def device(tmp_path: Path) -> StepModel:
    """A gemm, a gather of which half is hidden, and a gemm that waits for it."""
    rows = Rows().step(1, 0, 1_000).event(0, 900, "user_annotation", "train_step")
    rows.call(5, 1).kernel(100, 300, correlation=1, name=EVIL).call(120, 2)
    rows.collective(200, 500, correlation=2, launch=120, unit="layers.1\x1b", bytes=4096, dtype="bf16")
    rows.call(140, 3).kernel(510, 600, correlation=3).call(150, 4).copy(700, 800, correlation=4)
    run = load(write_run(tmp_path / "run", {0: rows}))
    return build(run, analyse_time_alone(run), 0, 1)


def lane(model: StepModel, label: str) -> Lane:
    return next(lane for lane in model.lanes if lane.label == label)


def place(lane: Lane, role: Role, number: int = 0) -> int:
    """The place of the event that a column within the n-th stretch of a role shows."""
    begin = float(lane.covers[role].edges[2 * number])
    found = lane.items.chosen(begin, begin + 1, role)
    assert found is not None
    return found


def test_a_kernel_says_its_launch_and_what_it_waited_for(device: StepModel) -> None:
    stream = lane(device, "s7 compute")
    _, text = describe_event(device, stream, place(stream, Role.COMPUTE, 1))
    assert "launch      cudaLaunchKernel at +0.000 ms, 370 ns before its start" in text
    assert "waited for  exposed gap 1 of 1: 200 ns" in text
    assert "by all_gather of layers.1\\x1b (moves at most 200 ns)" in text
    first = describe_event(device, stream, place(stream, Role.COMPUTE))[1]
    assert "waited for" not in first


def test_a_collective_says_wait_transfer_and_who_came_last(device: StepModel) -> None:
    for label, role in (("collectives", Role.TRANSFER), ("s20 comm", Role.HIDDEN)):
        mine = lane(device, label)
        _, text = describe_event(device, mine, place(mine, role))
        assert "wait        at least 0 ns, of it exposed 0 ns" in text
        assert "transfer    at most 300 ns, of it exposed 200 ns" in text
        assert "hidden      100 ns under compute" in text
        assert "bytes       4.0 KiB bf16" in text
        assert "last rank   unknown: not all ranks could be matched" in text


def test_a_group_of_very_many_ranks_is_short(device: StepModel) -> None:
    row = device.collectives.iloc[0].to_dict()
    many = {**row, "group": ",".join(map(str, range(300))), "group_size": 300}
    (line,) = (line for line in describe_collective(many) if line.startswith("group"))
    assert line.startswith("group       0,1,2,3,4")
    assert line.endswith("… (300 ranks)")
    assert len(line) < 70
    unsized = "\n".join(describe_collective({**row, "group": "stream:7", "group_size": 0}))
    assert "group       stream:7 (size unknown)" in unsized


def test_the_lateness_is_that_of_the_last_rank(device_job: LoadedRun) -> None:
    """Of a rank that waits for another one it is not its own, which may be nothing."""
    step = next(s for s in device_job.report.time.steps if s.rank == 0 and s.exposed_wait_ns > 0)
    model = build(device_job.run, device_job.analysis, 0, step.step)
    late = model.collectives[(model.collectives["blamed_rank"] == 2) & (model.collectives["wait_ns"] > 0)]
    assert len(late)
    for row in late.to_dict("records"):
        assert row["last_lateness_ns"] >= row["wait_ns"] > 0
        assert row["lateness_ns"] < row["last_lateness_ns"]
        said = "\n".join(describe_collective(row))
        assert f"last rank   rank 2, {format_ns(int(row['last_lateness_ns']))} after the first" in said
        assert "for unknown" not in said


def test_names_of_strangers_do_not_steer(device: StepModel) -> None:
    stream = lane(device, "s7 compute")
    title, text = describe_event(device, stream, place(stream, Role.COMPUTE))
    view = make_first_view(device.length_ns).at(150)
    line = describe_item(device, stream, find_cursor_target(stream, device.gaps, view, 20))
    for shown in (title, line, *text.split("\n")):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\n" not in shown
    assert "a\\x1b[2J[bold]b\\u202e\\x0ac" in line


def test_a_column_says_its_shares(device: StepModel) -> None:
    stream = lane(device, "s7 compute")
    said = describe_target(
        stream, find_cursor_target(stream, device.gaps, make_first_view(device.length_ns), 1)
    )
    assert "stream 7: compute 29.0 %, copies 10.0 %" in said
    phase = next((lane for lane in device.lanes if lane.kind is LaneKind.PHASES), None)
    assert phase is None  # nothing tells the phases of this step


def test_a_gap_names_what_blocks_and_for_whom(device_job: LoadedRun) -> None:
    """The third rank computes slower: the first one waits for it."""
    step = next(s for s in device_job.report.time.steps if s.rank == 0 and s.exposed_wait_ns > 0)
    model = build(device_job.run, device_job.analysis, 0, step.step)
    lines = [describe_gap(model, get_gap(model, at)) for at in range(len(model.gaps))]
    assert any("for rank 2" in line and "reduce_scatter" in line for line in lines)
    assert describe_gap(model, None) == ""
