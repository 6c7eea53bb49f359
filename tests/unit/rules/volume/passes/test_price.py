"""What collectives cost that need not be: 0.7 to 1.3 of what shows, and on top what each costs by itself."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS
from tests.support.repeats import analysis_with, gather
from zprof.analysis.analysis import RunAnalysis
from zprof.rules.volume.needless_collectives import CollectiveCost, price_collectives

US = 1_000


def run(*exposed_ms: float, device: str = "cuda", launching_us: int = 0) -> RunAnalysis:
    """Steps of these gathers, each launched for so long."""
    made = analysis_with([gather(f"u{place}", 0, "forward", shown) for place, shown in enumerate(exposed_ms)])
    rows = made.collectives
    launched = rows.assign(
        launch_start_ns=rows["launch_start_ns"].astype("Int64"),
        launch_end_ns=(rows["launch_start_ns"] + launching_us * US).astype("Int64"),
    )
    return replace(made, run=replace(made.run, device=device), collectives=launched)


def price(analysis: RunAnalysis, *units: str) -> CollectiveCost:
    rows = pd.DataFrame({"row": analysis.collectives.index[analysis.collectives["unit"].isin(units)]})
    return price_collectives(analysis, rows)


def test_what_shows_of_these_rows_and_no_others() -> None:
    found = price(run(2.0, 8.0), "u0")
    assert (found.count, found.bytes) == (1, 1_000_000)
    assert found.transfer_ns == 4 * MS
    assert found.exposed_ns == 2 * MS
    assert found.low_ns == pytest.approx(1.4 * MS)


def test_on_a_device_each_has_a_gap_in_the_queue_and_a_copy() -> None:
    """A megabyte is copied at 500 bytes a nanosecond in 2 us; the gap is 20 us."""
    assert price(run(2.0), "u0").high_ns == pytest.approx(2.6 * MS + 22 * US)
    assert price(run(0.0, 0.0), "u0", "u1").saving_ns == pytest.approx((0.0, 44 * US))


def test_on_a_cpu_the_thread_that_computes_wakes_up_launches_and_copies() -> None:
    """100 us to wake up; launching, and as much again for the copies before and after it."""
    found = price(run(2.0, device="cpu", launching_us=300), "u0")
    assert found.low_ns == pytest.approx(1.4 * MS)
    assert found.high_ns == pytest.approx(2.6 * MS + 100 * US + 600 * US)
