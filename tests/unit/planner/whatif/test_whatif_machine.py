"""The machine that plays steps: single steps by hand, and what must hold for all schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.whatif import Change
from zprof.planner.whatif.engine_policy import EnginePolicy
from zprof.planner.whatif.links import Link, LinkLine, MessageCosts
from zprof.planner.whatif.passes import PassWork, StepPasses, UnitSize, list_passes
from zprof.planner.whatif.replay import Await, Compute, Launch, ReplayedSteps, build_program, replay_steps

FREE = MessageCosts(launch_ns={}, pick_up_ns=0, queue_ns=0, wake_ns=0, lanes=False)
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def link(ns_per_byte: float, latency_ns: float = 0.0, ranks: int = 2) -> Link:
    lines = {
        kind: LinkLine(
            latency_ns=latency_ns,
            ns_per_byte=ns_per_byte * bus_factor(CollectiveKind(kind), ranks),
            known=True,
        )
        for kind in KINDS
    }
    return Link(lines=lines, seen={}, group_size=ranks)


def work(passes: list[list[float]], steps: int = 1) -> PassWork:
    made = np.repeat(np.array(passes, dtype=float)[:, None, :], steps, axis=1)
    none = np.zeros((steps, made.shape[2]))
    return PassWork(head=none, passes=made, tail=none, between=none)


def test_waiting_ends_and_transfer_begins_when_the_last_rank_has_come() -> None:
    ops = [Compute(what=0), Launch(key="a", kind="all_gather", bytes=20), Await(key="a")]
    played = replay_steps(ops, work([[5.0, 30.0]]), link(1.0), FREE)  # 20 bytes: a half moves
    assert played.wall_ns.tolist() == [[40.0, 40.0]]
    assert played.wait_ns.tolist() == [[25.0, 0.0]]
    assert played.transfer_ns.tolist() == [[10.0, 10.0]]
    assert played.work_ns.tolist() == [[5.0, 30.0]]


def test_a_message_that_compute_hides_costs_nothing() -> None:
    ops = [Launch(key="a", kind="all_gather", bytes=20), Compute(what=0), Await(key="a")]
    played = replay_steps(ops, work([[10.0, 10.0]]), link(1.0), FREE)
    assert played.wall_ns.tolist() == [[10.0, 10.0]]
    assert not played.transfer_ns.any()


def test_messages_of_one_link_stand_in_line_and_those_of_two_do_not() -> None:
    ops = [
        Launch(key="a", kind="all_gather", bytes=20),
        Launch(key="b", kind="reduce_scatter", bytes=20),
        Await(key="b"),
    ]
    one = replay_steps(ops, work([[0.0, 0.0]]), link(1.0), FREE)
    two = replay_steps(ops, work([[0.0, 0.0]]), link(1.0), replace(FREE, lanes=True))
    assert (one.wall_ns[0, 0], two.wall_ns[0, 0]) == (20.0, 10.0)
    assert one.transfer_ns[0, 0] == 20.0


def test_launching_picking_up_and_waking_cost_time() -> None:
    ops = [Launch(key="a", kind="all_gather", bytes=20), Await(key="a")]
    costs = MessageCosts(
        launch_ns={"all_gather": 1.0}, pick_up_ns=2.0, queue_ns=0.0, wake_ns=4.0, lanes=False
    )
    assert replay_steps(ops, work([[0.0, 0.0]]), link(1.0), costs).wall_ns[0, 0] == 17.0


def test_what_nobody_launched_is_there() -> None:
    assert replay_steps([Await(key="x")], work([[0.0, 0.0]]), link(1.0), FREE).wall_ns[0, 0] == 0.0


def test_half_the_bandwidth_doubles_what_is_no_latency() -> None:
    before = link(1.0, latency_ns=7.0)
    after = before.changed(Change(bandwidth_ratio=0.5))
    assert before.transfer_ns("all_gather", 20) == 17.0
    assert after.transfer_ns("all_gather", 20) == 27.0
    assert before.changed(Change(latency_ratio=3.0)).transfer_ns("all_gather", 20) == 31.0


def test_a_kind_that_was_not_sent_goes_at_the_bandwidth_of_another() -> None:
    only = replace(link(1.0), lines={"all_gather": LinkLine(latency_ns=3.0, ns_per_byte=0.5, known=True)})
    assert only.transfer_ns("all_reduce", 20) == pytest.approx(3.0 + 2 * 0.5 * 20)


def test_more_ranks_move_more_of_a_ring() -> None:
    four = link(1.0).changed(Change(shard_ranks=4))
    assert four.transfer_ns("all_gather", 20) == pytest.approx(15.0)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[StepPasses, EnginePolicy, Link]:
    """A schedule with a root or without, in any stage, on two to four ranks."""
    inside, root = draw(st.integers(1, 4)), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 200), min_size=inside + root, max_size=inside + root))
    units = tuple(
        UnitSize(name=str(index), gather_bytes=size, reduce_bytes=size, encloses=root and index == 0)
        for index, size in enumerate(sizes)
    )
    micro_batches, ranks = draw(st.integers(1, 2)), draw(st.integers(2, 4))
    passes = list_passes(units, tuple(reversed(range(int(root), len(units)))), micro_batches, True)
    count = len(passes) * ranks
    values = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    made = work(np.array(values, dtype=float).reshape(len(passes), ranks).tolist(), steps=3)
    skeleton = StepPasses(
        units=units,
        passes=passes,
        work=made,
        ranks=tuple(range(ranks)),
        steps=(0, 1, 2),
        micro_batches=micro_batches,
    )
    habits = EnginePolicy(
        stage=draw(st.integers(0, 3)),
        prefetch=draw(st.integers(0, 3)),
        keep=draw(st.sampled_from(["none", "last", "all"])),
        overlap_reduce=draw(st.booleans()),
        overlap_gather=draw(st.booleans()),
        in_flight=draw(st.integers(1, 3)),
    )
    return skeleton, habits, link(draw(st.integers(1, 5)), draw(st.integers(0, 20)), ranks)


def _play(job: tuple[StepPasses, EnginePolicy, Link]) -> ReplayedSteps:
    skeleton, habits, over = job
    return replay_steps(build_program(skeleton, habits), skeleton.work, over, FREE)


@settings(max_examples=25)
@given(jobs())
def test_a_step_is_never_shorter_than_its_work_and_sums(job: tuple[StepPasses, EnginePolicy, Link]) -> None:
    played = _play(job)
    assert (played.wall_ns >= played.work_ns - 1e-6).all()
    whole = played.work_ns + played.wait_ns + played.transfer_ns
    assert np.allclose(whole, played.wall_ns)


@settings(max_examples=25)
@given(jobs())
def test_a_link_that_takes_no_time_exposes_no_transfer(job: tuple[StepPasses, EnginePolicy, Link]) -> None:
    skeleton, habits, _ = job
    played = _play((skeleton, habits, link(0.0, ranks=len(skeleton.ranks))))
    assert not played.transfer_ns.any()


@settings(max_examples=25)
@given(jobs())
def test_a_slower_link_never_makes_the_run_shorter(job: tuple[StepPasses, EnginePolicy, Link]) -> None:
    skeleton, habits, over = job
    slower = replace(over, bandwidth_ratio=0.5)
    assert _play((skeleton, habits, slower)).wall_ns.sum() >= _play(job).wall_ns.sum() - 1e-6


def test_the_first_step_waits_for_what_the_one_before_has_gathered() -> None:
    units = (UnitSize(name="a", gather_bytes=100, reduce_bytes=100),)
    passes = list_passes(units, (0,), 1, True)
    made = StepPasses(
        units=units, passes=passes, work=work([[1.0, 1.0]] * 2, 3), ranks=(0, 1), steps=(0, 1, 2)
    )
    habits = EnginePolicy(
        stage=2, prefetch=0, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=2
    )
    walls = replay_steps(build_program(made, habits), made.work, link(1.0), FREE).wall_ns[:, 0].tolist()
    assert walls == [102.0] * 3  # gather 50, forward 1, backward 1, reduction 50
