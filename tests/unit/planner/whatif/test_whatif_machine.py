"""The machine that plays steps: single steps by hand, and what must hold for all schedules."""

import numpy as np
import pytest
from msgspec.structs import replace

from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.plan import Change
from zprof.step.links import Link, LinkLine
from zprof.step.schedule import (
    Await,
    Compute,
    EnginePolicy,
    Launch,
    Op,
    UnitSize,
    build_program,
    list_passes,
)
from zprof.step.unit_replay import MessageCosts, PassWork, replay_steps

FREE = MessageCosts(launch_ns={}, pick_up_ns=0, queue_ns=0, wake_ns=0, lanes=False)
COSTS = MessageCosts(launch_ns={"all_gather": 1.0}, pick_up_ns=2.0, queue_ns=0.0, wake_ns=4.0, lanes=False)
#: Of 20 bytes a half moves between two ranks.
GATHER = Launch(key="a", kind="all_gather", bytes=20)
REDUCE = Launch(key="b", kind="reduce_scatter", bytes=20)


def link(ns_per_byte: float, latency_ns: float = 0.0, ranks: int = 2) -> Link:
    lines = {
        str(kind): LinkLine(
            latency_ns=latency_ns, ns_per_byte=ns_per_byte * bus_factor(kind, ranks), known=True
        )
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
    }
    return Link(lines=lines, seen={}, group_size=ranks)


def work(passes: list[list[float]], steps: int = 1) -> PassWork:
    made = np.repeat(np.array(passes, dtype=float)[:, None, :], steps, axis=1)
    none = np.zeros((steps, made.shape[2]))
    return PassWork(head=none, passes=made, tail=none, between=none)


@pytest.mark.parametrize(
    ("ops", "computes", "walls", "transfer"),
    [
        # Waiting ends and transfer starts when the last rank has come.
        ([Compute(what=0), GATHER, Await(key="a")], [5.0, 30.0], 40.0, 10.0),
        # A message that compute hides costs nothing; messages of one link stand in line.
        ([GATHER, Compute(what=0), Await(key="a")], [10.0, 10.0], 10.0, 0.0),
        ([GATHER, REDUCE, Await(key="b")], [0.0, 0.0], 20.0, 20.0),
        ([Await(key="x")], [0.0, 0.0], 0.0, 0.0),
    ],
)
def test_steps_by_hand(ops: list[Op], computes: list[float], walls: float, transfer: float) -> None:
    played = replay_steps(ops, work([computes]), link(1.0), FREE)
    assert played.wall_ns.tolist() == [[walls, walls]]
    assert played.transfer_ns.tolist() == [[transfer, transfer]]
    assert (played.wait_ns + played.transfer_ns + played.work_ns == played.wall_ns).all()


def test_messages_have_costs_of_their_own_and_those_of_two_links_run_at_once() -> None:
    def wall_ns(ops: list[Op], costs: MessageCosts) -> float:
        return float(replay_steps(ops, work([[0.0, 0.0]]), link(1.0), costs).wall_ns[0, 0])

    assert wall_ns([GATHER, Await(key="a")], COSTS) == 17.0
    assert wall_ns([GATHER, REDUCE, Await(key="b")], replace(FREE, lanes=True)) == 10.0


@pytest.mark.parametrize(
    ("change", "took_ns"),
    [
        (Change(), 17.0),
        (Change(bandwidth_ratio=0.5), 27.0),
        (Change(latency_ratio=3.0), 31.0),
        # Three hops in place of one, and three quarters of the bytes in place of a half.
        (Change(shard_ranks=4), 3 * 7.0 + 15.0),
    ],
)
def test_a_link_of_another_speed_or_group(change: Change, took_ns: float) -> None:
    assert link(1.0, latency_ns=7.0).changed(change).transfer_ns("all_gather", 20) == pytest.approx(took_ns)


def test_a_kind_that_was_not_sent_goes_at_the_bandwidth_of_another() -> None:
    only = replace(link(1.0), lines={"all_gather": LinkLine(latency_ns=3.0, ns_per_byte=0.5, known=True)})
    assert only.transfer_ns("all_reduce", 20) == pytest.approx(3.0 + 2 * 0.5 * 20)


def test_the_first_step_waits_for_what_the_one_before_has_gathered() -> None:
    """Gather 50, forward 1, backward 1, reduction 50."""
    units = (UnitSize(name="a", gather_bytes=100, reduce_bytes=100),)
    passes = list_passes(units, (0,), 1, True)
    policy = EnginePolicy(
        stage=2, prefetch=0, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=2
    )
    program = build_program(units, passes, policy)
    walls = replay_steps(program, work([[1.0, 1.0]] * 2, 3), link(1.0), FREE).wall_ns
    assert walls[:, 0].tolist() == [102.0] * 3
