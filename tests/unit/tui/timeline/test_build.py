"""Lanes of real and simulated steps: what they hold is the ledger of the step, to the nanosecond."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.device_ranks import Rows, write_run
from zprof.analysis.analysis import analyse_time_alone
from zprof.analysis.intervals import measure
from zprof.model.errors import MissingData
from zprof.model.time import StepTime
from zprof.run.reader import load
from zprof.tui.session import LoadedRun
from zprof.tui.timeline import build as building
from zprof.tui.timeline.build import build
from zprof.tui.timeline.lane import Lane, LaneKind, Role
from zprof.tui.timeline.step_model import StepModel

EXPOSED = (Role.TRANSFER, Role.WAIT)


def models(loaded: LoadedRun) -> list[tuple[StepTime, StepModel]]:
    steps = loaded.report.time.steps
    return [(step, build(loaded.run, loaded.analysis, step.rank, step.step)) for step in steps]


def lane(model: StepModel, key: str) -> Lane:
    return next(lane for lane in model.lanes if lane.key == key)


def held(lane: Lane, role: Role) -> int:
    return lane.covers[role].length_ns if role in lane.covers else 0


def test_lanes_of_a_cpu_rank_are_its_ledger(alone: LoadedRun) -> None:
    for step, model in models(alone):
        assert model.length_ns == step.wall_ns
        main = next(lane for lane in model.lanes if lane.label == "main thread")
        both = (main, lane(model, "collectives"))
        assert held(main, Role.COMPUTE) == step.compute_ns
        for one in both:
            assert [held(one, role) for role in EXPOSED] == [step.exposed_transfer_ns, step.exposed_wait_ns]
        assert held(both[1], Role.HIDDEN) == step.overlapped_ns
        assert measure(model.gaps) == step.exposed_transfer_ns + step.exposed_wait_ns


def test_lanes_of_a_device_are_its_ledger_on_every_clock(device_job: LoadedRun) -> None:
    assert {step.rank for step, _ in models(device_job)} == {0, 1, 2}
    for step, model in models(device_job):
        streams = [lane for lane in model.lanes if lane.kind is LaneKind.STREAM]
        collectives = lane(model, "collectives")
        assert sum(held(one, Role.COMPUTE) for one in streams) == step.compute_ns  # one stream computes
        assert [held(collectives, role) for role in EXPOSED] == [
            step.exposed_transfer_ns,
            step.exposed_wait_ns,
        ]
        assert held(collectives, Role.HIDDEN) == step.overlapped_ns
        assert step.exposed_wait_ns > 0 or step.rank == 2


def test_collectives_stand_where_their_events_do(device_job: LoadedRun) -> None:
    """The analysis has them on the common clock, the events are on that of their rank."""
    for _, model in models(device_job):
        mine = lane(model, "collectives").items
        starts = np.concatenate(
            [one.items.start_ns for one in model.lanes if one.kind is LaneKind.STREAM]
        ).tolist()
        assert len(mine)
        assert set(mine.start_ns.tolist()) <= set(starts)


def test_a_step_of_a_device_has_phases_and_units_where_ranges_tell(alone: LoadedRun) -> None:
    _, model = models(alone)[0]
    assert {"forward", "backward", "optimizer"} <= set(lane(model, "phase").names)
    assert "blocks.0" in lane(model, "unit").names


def test_the_lanes_that_did_least_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows().step(1, 0, 1_000).call(1, 1)
    for stream in range(1, 7):
        rows.kernel(10, 10 + 10 * stream, stream=stream, correlation=1)
    monkeypatch.setattr(building, "MAX_LANES", 3)
    run = load(write_run(tmp_path / "run", {0: rows}))
    model = build(run, analyse_time_alone(run), 0, 1)
    assert [lane.label for lane in model.lanes] == ["s4 compute", "s5 compute", "s6 compute"]
    assert model.left_out == 4  # three streams, and the thread


def test_the_launch_of_work_is_found_also_before_the_step(tmp_path: Path) -> None:
    """The device begins its second step at 150, when the first is done; the host launched it at 110."""
    rows = Rows().step(1, 0, 100).step(2, 100, 200)
    rows.call(5, 1).kernel(10, 150, correlation=1).call(110, 2).kernel(155, 190, correlation=2)
    run = load(write_run(tmp_path / "run", {0: rows}))
    model = build(run, analyse_time_alone(run), 0, 2)
    stream = next(lane for lane in model.lanes if lane.kind is LaneKind.STREAM)
    (kernel,) = [model.event(int(row)) for row in stream.items.row]
    launch = model.launch_of(kernel)
    assert launch is not None
    assert (kernel.start_ns, launch.start_ns, launch.name) == (5, -40, "cudaLaunchKernel")


def test_what_was_not_timed_is_said(alone: LoadedRun) -> None:
    with pytest.raises(MissingData, match="did not time step 99"):
        build(alone.run, alone.analysis, 0, 99)
    with pytest.raises(MissingData, match="rank 7 has no time window"):
        build(alone.run, alone.analysis, 7, 3)
