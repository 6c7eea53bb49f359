"""compute_blocks_comm: gathers that stood behind kernels and are exposed for it."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import Run, found, judged, on_device, run_of, with_walls, without_collectives
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import OptionalInts
from zprof.causes.compute_blocks_comm import CAUSE as compute_blocks_comm


def blocked(
    each_ns: int | None,
    exposed_ns: int = 80 * MS,
    *,
    count: int = 160,
    of: int = 160,
    wall_ms: float = 100,
    device: str = "cuda",
) -> RunAnalysis:
    """Two ranks, eight steps: of these gathers the first ones stood behind kernels for so long."""
    run = with_walls(on_device(run_of(), device), wall_ms * MS)
    gathers = run.collectives.at(run.collectives.texts("kind").equals("all_gather"))
    values = OptionalInts.of([each_ns] * count + [0] * (of - count))
    rows = changed(gathers.at(slice(10, 10 + of)), blocked_ns=values, exposed_transfer_ns=exposed_ns)
    return replace(run, collectives=rows.renumber())


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: blocked(MS // 5 + 1), "high"),  # more than 2 %
        (lambda: blocked(4 * MS, 0), None),  # nothing exposed
        (lambda: blocked(20 * MS, count=39), None),  # fewer
        (lambda: blocked(20 * MS, count=9, of=27), "medium"),  # nine
        (lambda: blocked(50_000, wall_ms=1), None),  # 50 us
        (lambda: blocked(None), "gap"),  # not known
        (lambda: without_collectives(blocked(2 * MS)), "gap"),  # no collectives
        (lambda: blocked(2 * MS, device="cpu"), None),  # a CPU has no queue
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(compute_blocks_comm, run()) == expected


@pytest.mark.parametrize(
    ("exposed_ms", "saving_ms"), [(80, (0.7 * 20, 20)), (1, (0.7 * 10, 1.1 * 10))], ids=["blocked", "exposed"]
)
def test_it_saves_what_was_blocked_as_far_as_it_is_exposed(
    exposed_ms: int, saving_ms: tuple[float, float]
) -> None:
    """160 gathers of 16 steps, 2 ms each."""
    finding = found(compute_blocks_comm, blocked(2 * MS, exposed_ms * MS))
    assert finding.id == "ZP407"
    assert finding.saving_ns == pytest.approx(tuple(ms * MS for ms in saving_ms), rel=1e-3)
