"""What a lane of a thread holds: each instant one thing."""

import numpy as np

from zprof.analysis.intervals import EMPTY, intervals
from zprof.tui.timeline.lane import Kind, LaneKind, Role
from zprof.tui.timeline.make_lanes import ExposedTime, make_work_lane

EXPOSED = ExposedTime(waiting=intervals([40], [45]), moving=intervals([45], [60]))


def held(*events: tuple[int, int, Kind], is_main: bool, on_device: bool = False) -> dict[Role, int]:
    start, end, kind = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
    lane = make_work_lane(
        kind=LaneKind.THREAD,
        number=5,
        spans=np.column_stack((start, end)),
        row=np.arange(len(events)),
        kinds=kind.astype(np.int8),
        exposed=EXPOSED,
        is_main=is_main,
        on_device=on_device,
        length_ns=100,
    )
    return {role: cover.length_ns for role, cover in lane.covers.items()} if lane else {}


def test_operators_within_a_wait_are_no_compute() -> None:
    """As the ledger has it: a wait of 35..65 in an operator of 0..80 that a collective holds up for 20."""
    found = held((0, 80, Kind.COMPUTE), (35, 65, Kind.WAIT), (70, 75, Kind.COPY), is_main=True)
    assert found == {Role.COMPUTE: 45, Role.WAIT: 5, Role.TRANSFER: 15, Role.MEMCPY: 5, Role.HOST: 10}


def test_wrappers_of_the_main_thread_are_host_work_around_its_operators() -> None:
    found = held((0, 30, Kind.HOST), (10, 20, Kind.COMPUTE), (90, 120, Kind.RANGE), is_main=True)
    assert (found[Role.COMPUTE], found[Role.HOST]) == (10, 20)


def test_a_thread_that_communicates_is_cut_by_what_it_holds_up() -> None:
    found = held((30, 70, Kind.COLLECTIVE), (70, 80, Kind.HOST), is_main=False)
    assert found == {Role.WAIT: 5, Role.TRANSFER: 15, Role.HIDDEN: 20, Role.HOST: 10}


def test_annotations_alone_make_no_lane() -> None:
    assert held((0, 90, Kind.RANGE), is_main=True, on_device=True) == {}


def test_a_set_without_gaps_has_none() -> None:
    assert len(ExposedTime(waiting=EMPTY, moving=EMPTY).all) == 0
