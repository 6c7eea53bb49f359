"""The slowdown of timelines whose durations are known: closed forms, and what holds for all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pipelines import Duration, make_columns, order_1f1b, play
from zprof.analysis.slowdown.measure import measure_slowdown
from zprof.model.slowdown import Slowdown, SlowdownCause

FORWARD_MS, BACKWARD_MS = 3.0, 5.0
#: An interleaved schedule of two stages with two chunks each, and two micro-batches.
INTERLEAVED = [
    [
        *(("forward", chunk, number) for chunk in (0, 1) for number in (0, 1)),
        *(("backward", chunk, number) for chunk in (1, 0) for number in (0, 1)),
    ]
] * 2


def equal(replica: int, step: int, kind: str, chunk: int, number: int) -> float:
    return FORWARD_MS if kind == "forward" else BACKWARD_MS


def slow_down(factor: float, *, chunk: int, replica: int | None = None) -> Duration:
    def duration(own_replica: int, step: int, kind: str, own_chunk: int, number: int) -> float:
        is_slow = own_chunk == chunk and replica in (None, own_replica)
        return (factor if is_slow else 1.0) * equal(own_replica, step, kind, own_chunk, number)

    return duration


def measure(rows: list[dict[str, object]]) -> Slowdown:
    slowdown, gaps = measure_slowdown(make_columns(rows))
    assert slowdown is not None
    assert not gaps
    return slowdown


def make_orders(stages: int, micro_batches: int) -> list[list[tuple[str, int, int]]]:
    return [order_1f1b(stages, micro_batches, stage) for stage in range(stages)]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 8), (8, 3), (3, 16)])
@pytest.mark.parametrize("with_transfers", [False, True])
def test_equal_stages_are_ideal_and_have_the_known_bubble(
    stages: int, micro_batches: int, with_transfers: bool
) -> None:
    rows = play(make_orders(stages, micro_batches), equal, replicas=2, with_transfers=with_transfers)
    slowdown = measure(rows)
    busy_ns = micro_batches * (FORWARD_MS + BACKWARD_MS) * 1e6
    assert slowdown.s == pytest.approx(1)
    assert 1 - busy_ns / slowdown.ideal_step_ns == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert slowdown.recorded_step_ns == slowdown.replayed_step_ns == slowdown.ideal_step_ns
    assert (slowdown.m_s, slowdown.m_w, slowdown.cause) == (None, None, SlowdownCause.NONE)
    assert slowdown.micro_batches == micro_batches


@pytest.mark.parametrize("with_transfers", [False, True])
def test_slow_last_stage(with_transfers: bool) -> None:
    stages, micro_batches, factor = 4, 8, 2.0
    rows = play(
        make_orders(stages, micro_batches),
        slow_down(factor, chunk=stages - 1),
        replicas=2,
        steps=2,
        with_transfers=with_transfers,
    )
    slowdown = measure(rows)
    one, mean = FORWARD_MS + BACKWARD_MS, (FORWARD_MS + BACKWARD_MS) * (stages - 1 + factor) / stages
    own, ideal = (stages - 1) * one + micro_batches * factor * one, (micro_batches + stages - 1) * mean
    assert slowdown.s == pytest.approx(own / ideal)
    with_ideal_last = (stages - 1) * one + micro_batches * mean
    assert slowdown.m_s == pytest.approx((own - with_ideal_last) / (own - ideal))
    assert slowdown.by_stage[stages - 1] == max(slowdown.by_stage.values())
    assert slowdown.cause is SlowdownCause.LAST_STAGE


def test_one_slow_worker_is_named() -> None:
    rows = play(make_orders(4, 8), slow_down(1.6, chunk=1, replica=2), replicas=8, steps=3)
    slowdown = measure(rows)
    assert slowdown.slowest_ranks == (2 * 4 + 1,)
    assert slowdown.cause is SlowdownCause.SLOW_WORKERS
    assert max(slowdown.by_worker.values()) == slowdown.by_worker[9]
    assert slowdown.m_w is not None
    assert slowdown.m_w > 0.9
    assert sorted(slowdown.by_dp_rank.values())[-2] < 1.05 < slowdown.by_dp_rank[2]


def test_slow_stage_of_a_single_replica_is_the_stage() -> None:
    slowdown = measure(play(make_orders(4, 8), slow_down(2.0, chunk=3)))
    assert slowdown.m_s == slowdown.m_w
    assert slowdown.cause is SlowdownCause.LAST_STAGE


@pytest.mark.parametrize("with_transfers", [False, True])
def test_model_chunks_are_replayed_as_recorded(with_transfers: bool) -> None:
    def duration(replica: int, step: int, kind: str, chunk: int, number: int) -> float:
        return equal(replica, step, kind, chunk, number) * (1 + chunk + number / 4)

    slowdown = measure(play(INTERLEAVED, duration, with_transfers=with_transfers))
    assert slowdown.replayed_step_ns == slowdown.recorded_step_ns


def test_long_operation_beside_the_critical_path_makes_the_ideal_longer() -> None:
    """S is below 1 if the average is raised by what no other operation waits for."""

    def duration(replica: int, step: int, kind: str, chunk: int, number: int) -> float:
        return 2.0 if (kind, chunk, number) == ("forward", 0, 1) else 1.0

    slowdown = measure(play(make_orders(2, 2), duration))
    assert slowdown.s == pytest.approx(6 / (3 * 1.25 + 3))
    assert (slowdown.m_s, slowdown.cause) == (None, SlowdownCause.NONE)


@settings(max_examples=40, deadline=None)
@given(
    stages=st.integers(1, 4),
    micro_batches=st.integers(1, 5),
    replicas=st.integers(1, 4),
    with_transfers=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_replay_is_the_recorded_step_and_no_faster_than_its_ideal(
    stages: int, micro_batches: int, replicas: int, with_transfers: bool, seed: int
) -> None:
    """Each operation takes the same times in some order of the replicas, so all have the mean of their type:
    a step, the longest path, is convex in its durations, and its mean is at least the step of the means.
    """
    random = np.random.default_rng(seed)
    times = {kind: random.integers(1, 100, replicas) for kind in ("forward", "backward")}
    orders: dict[tuple[object, ...], np.ndarray] = {}

    def duration(replica: int, step: int, kind: str, chunk: int, number: int) -> float:
        key = (kind, chunk, number)
        if key not in orders:
            orders[key] = random.permutation(times[kind])
        # the replicas wait for each other, so each is a step of its own here
        return float(orders[key][(replica + step) % replicas])

    rows = play(
        make_orders(stages, micro_batches),
        duration,
        replicas=1,
        steps=replicas,
        with_transfers=with_transfers,
    )
    slowdown = measure(rows)
    assert abs(slowdown.recorded_step_ns - slowdown.replayed_step_ns) <= 1
    assert slowdown.s >= 1 - 1e-9
    assert all(value >= 1 - 1e-9 for value in slowdown.by_stage.values())


def test_steps_that_differ_are_left_out() -> None:
    rows = play(make_orders(2, 3), equal, steps=3) + [
        row | {"step": 7} for row in play(make_orders(2, 2), equal)
    ]
    slowdown, gaps = measure_slowdown(make_columns(rows))
    assert slowdown is not None
    assert slowdown.steps == 3
    assert len(gaps) == 1


def test_unknown_operations_and_missing_stages_are_gaps() -> None:
    rows = play(make_orders(2, 2), equal)
    other = rows[0] | {"operation": "expert-all-to-all"}
    slowdown, gaps = measure_slowdown(make_columns([*rows, other]))
    assert slowdown is not None
    assert "expert-all-to-all" in gaps[0].reason
    slowdown, gaps = measure_slowdown(make_columns([row for row in rows if row["stage"]]))
    assert slowdown is None
    assert len(gaps) == 1


def test_contradicting_order_is_a_gap() -> None:
    rows = play(make_orders(2, 2), equal)
    # the last backward of the last stage before its first forward, which it needs
    first = next(row for row in rows if row["stage"] == 0 and row["operation"] == "backward-compute")
    early = [row | {"start_ns": -(10**9)} if row is first else row for row in rows]
    slowdown, gaps = measure_slowdown(make_columns(early))
    assert slowdown is None
    assert len(gaps) == 1
