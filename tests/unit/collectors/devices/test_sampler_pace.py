"""Sampling never takes more than its share of the time, and never more than its share of memory."""

import random

import pytest

from zprof.collectors.devices.sampler import DeviceLog, DeviceRow, SampleReason, SamplingPace

MS = 1_000_000


def row(time_ns: int, device: str = "cuda:0") -> DeviceRow:
    return DeviceRow(time_ns=time_ns, device=device, reason=SampleReason.PERIOD, group=None, cost_ns=1)


@pytest.mark.parametrize("seed", range(5))
def test_no_stretch_of_samples_takes_more_than_its_share(seed: int) -> None:
    chance = random.Random(seed)
    pace = SamplingPace(period_ns=200 * MS, most_share=0.01)
    costs = [chance.choice([0, MS, 3 * MS, 50 * MS]) for _ in range(200)]
    rests = [pace.after(cost) for cost in costs]
    for begin in range(0, 200, 7):
        taken, rested = sum(costs[begin:]), sum(rests[begin:])
        assert taken <= 0.01 * (taken + rested) * (1 + 1e-9)


def test_cheap_samples_come_at_the_period() -> None:
    pace = SamplingPace(period_ns=200 * MS)
    assert [pace.after(MS) for _ in range(20)] == [200 * MS] * 20
    assert not pace.had_to_slow


def test_one_slow_sample_is_not_worth_a_word_but_many_are() -> None:
    pace = SamplingPace(period_ns=200 * MS)
    for _ in range(50):
        pace.after(MS)
    assert pace.after(10 * MS) == 990 * MS
    assert not pace.had_to_slow
    for _ in range(50):
        pace.after(10 * MS)
    assert pace.had_to_slow
    assert "51 of 101 samples" in pace.account()
    assert "560 ms" in pace.account()


def test_a_full_log_keeps_every_second_moment_and_goes_on() -> None:
    log = DeviceLog(most=8)
    thinned = [log.add_tick([row(time_ns), row(time_ns, "cuda:1")]) for time_ns in range(5)]
    assert thinned == [False] * 4 + [True]
    assert log.columns()["time_ns"] == [0, 0, 2, 2, 4, 4]
    for time_ns in range(5, 500):
        log.add_tick([row(time_ns), row(time_ns, "cuda:1")])
        assert len(log.columns()["time_ns"]) <= 8
    assert log.columns()["time_ns"][0] == 0


def test_rows_at_groups_are_never_thinned_and_stand_in_order() -> None:
    log = DeviceLog(most=2)
    log.add_at_group(row(3))
    for time_ns in (0, 2, 4, 6):
        log.add_tick([row(time_ns)])
    assert 3 in log.columns()["time_ns"]
    assert log.columns()["time_ns"] == sorted(log.columns()["time_ns"])
