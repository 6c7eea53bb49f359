"""Half of the bytes: from three quarters of what the replay wins to half of the transfer at most."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, ORIGIN, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.rules.volume.half_precision import price_half_bytes


def one_step(*rows: tuple[float, float, float]) -> RunAnalysis:
    """One step of one rank: (start, transfer, of it exposed) of each collective, in ms."""
    analysis = analysis_of(Scenario(ranks=2, steps=1))
    frame = pd.DataFrame(
        {
            "rank": 0,
            "step": 0,
            "kind": "reduce_scatter",
            "group": "0,1",
            "bytes": 1_000,
            "matched": True,
            "bound": False,
            "start_ns": [ORIGIN + int(start * MS) for start, _, _ in rows],
            "end_ns": [ORIGIN + int((start + transfer) * MS) for start, transfer, _ in rows],
            "launch_start_ns": pd.array([ORIGIN + int(start * MS) for start, _, _ in rows], dtype="Int64"),
            "wait_start_ns": pd.array([pd.NA] * len(rows), dtype="Int64"),
            "transfer_ns": [int(transfer * MS) for _, transfer, _ in rows],
            "exposed_transfer_ns": [int(exposed * MS) for _, _, exposed in rows],
            "exposed_wait_ns": 0,
        }
    )
    return replace(analysis, collectives=frame, steps=analysis.steps.head(1))


def test_all_exposed() -> None:
    """Ten ms that show become five: 3.75 of the five at least, and no more than half of the ten."""
    analysis = one_step((0, 10, 10))
    priced = price_half_bytes(analysis, analysis.collectives)
    assert priced.saving_ns == pytest.approx((3.75 * MS, 5 * MS))


def test_mostly_hidden() -> None:
    """Of ten ms two show: all of them are won, no more than what shows."""
    analysis = one_step((0, 10, 2))
    priced = price_half_bytes(analysis, analysis.collectives)
    assert priced.saving_ns == pytest.approx((1.5 * MS, 2 * MS))


def test_the_end_of_the_range_is_above_what_is_replayed() -> None:
    """Two of three ms each, 30 apart: their 3 ms of the 6 are won; at most half of their transfer."""
    analysis = one_step((0, 6, 4), (40, 6, 4))
    low, high = price_half_bytes(analysis, analysis.collectives).saving_ns
    assert low == pytest.approx(0.75 * 6 * MS)
    assert high == pytest.approx(6 * MS)


def test_a_little_more_than_the_replay_wins_at_most() -> None:
    """Of the first two ms show, which are won; a second one that is not halved shows ten."""
    analysis = one_step((0, 10, 2), (40, 10, 10))
    priced = price_half_bytes(analysis, analysis.collectives.head(1))
    assert priced.saving_ns == pytest.approx((1.5 * MS, 2.3 * MS))
