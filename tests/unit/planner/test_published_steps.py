"""Steps of models of 1e12 and 7.5e9 parameters against figures worked out before, to the digit printed."""

import pytest
from msgspec.structs import replace

from tests.support.planned_jobs import known_step as step
from tests.support.planned_jobs import seven, trillion
from zprof.model.job import Degrees, Job
from zprof.model.machines import A100, H100, MACHINES, V100, Hardware
from zprof.model.plan import Scheme
from zprof.planner.plan import plan_traffic
from zprof.planner.sensitivity import with_bandwidth
from zprof.step.from_plan import make_data_group

RATIOS = (1.0, 0.75, 0.5)


def seconds(job: Job) -> float:
    return step(job).wall_ns / 1e9


def as_printed(value: float, printed: str) -> bool:
    """Equal to the digits that are printed."""
    digits = len(printed.partition(".")[2])
    return f"{value:.{digits}f}" == printed


#: Seconds and efficiency in per cent at 100, 75 and 50 % of the bandwidth; 1T on 1024 devices, 7.5B on 64.
TABLE = (
    (trillion(V100, 512), ("110.3", "110.4", "123.5"), ("100", "100", "89")),
    (trillion(V100, 1024), ("220.2", "220.3", "220.5"), ("100", "100", "100")),
    (trillion(V100, 2048), ("440", "440", "440"), ("100", "100", "100")),
    (trillion(A100, 512), ("32.6", "41.5", "61.6"), ("90", "71", "48")),
    (trillion(A100, 1024), ("58.9", "59.0", "64.8"), ("100", "100", "91")),
    (trillion(A100, 2048), ("117.6", "117.7", "117.8"), ("100", "100", "100")),
    (trillion(H100, 512), ("18.0", "23.5", "34.7"), ("58", "44", "30")),
    (trillion(H100, 1024), ("21.7", "23.6", "34.8"), ("96", "88", "60")),
    (trillion(H100, 2048), ("41.8", "41.8", "43.0"), ("100", "100", "97")),
    (trillion(MACHINES["h200"], 512), ("18.0", "23.5", "34.7"), ("58", "44", "30")),
    (seven(A100, 1024), ("0.333", "0.334", "0.469"), ("99", "98", "70")),
    (seven(H100, 1024), ("0.146", "0.186", "0.268"), ("80", "63", "44")),
    (seven(H100, 4096), ("0.469", "0.469", "0.471"), ("99", "99", "99")),
)


@pytest.mark.parametrize(("job", "walls", "efficiencies"), TABLE)
def test_walls_and_efficiencies(job: Job, walls: tuple[str, ...], efficiencies: tuple[str, ...]) -> None:
    for ratio, wall, efficiency in zip(RATIOS, walls, efficiencies, strict=True):
        found = step(with_bandwidth(job, ratio))
        assert as_printed(found.wall_ns / 1e9, wall), (ratio, found.wall_ns)
        assert as_printed(100 * found.efficiency_ratio, efficiency), (ratio, found.efficiency_ratio)


@pytest.mark.parametrize(
    ("hardware", "tokens", "units", "latencies_us", "printed"),
    [
        (H100, 512, 128, (5, 10, 50, 100), ("17.7", "18.0", "19.9", "22.4")),
        (H100, 512, 512, (10, 50, 100), ("21.5", "29.3", "39.2")),
        (V100, 256, 128, (5, 10, 50, 100), ("61.9", "61.9", "62.6", "63.8")),
        (V100, 256, 512, (10, 50, 100), ("64.3", "68.3", "73.2")),
    ],
)
def test_latency_where_communication_decides(
    hardware: Hardware, tokens: int, units: int, latencies_us: tuple[int, ...], printed: tuple[str, ...]
) -> None:
    for latency, wanted in zip(latencies_us, printed, strict=True):
        slow = replace(hardware, inter_latency_ns=latency * 1000)
        assert as_printed(seconds(trillion(slow, tokens, units)), wanted), latency


@pytest.mark.parametrize(
    ("hardware", "tokens", "half_message"), [(V100, 750, "0.26"), (A100, 1404, "0.61"), (H100, 2198, "1.1")]
)
def test_latency_that_is_hidden(hardware: Hardware, tokens: int, half_message: str) -> None:
    """All but the first gather and the last reduction; a message of lat(N) beta has half the bandwidth."""
    fast, slow = (
        seconds(trillion(replace(hardware, inter_latency_ns=latency), tokens)) for latency in (5_000, 100_000)
    )
    first_and_last = 2 * 0.095e-3 * -(-1024 // hardware.devices_per_node)
    assert slow - fast == pytest.approx(first_and_last, rel=1e-3)
    group = make_data_group(hardware, Degrees(dp=1024))
    assert as_printed(group.latency_ns / 1e9 * group.bytes_per_s / 1e9, half_message)


@pytest.mark.parametrize(("degrees", "ranks"), [(Degrees(dp=1024), 1024), (Degrees(dp=64, mp=16), 64)])
def test_sharding_over_fewer_devices_does_not_save_network_cards(degrees: Degrees, ranks: int) -> None:
    """Flat over 1024, or 64 by 16: the same bytes leave a node, so that the same time passes."""
    still = replace(V100, inter_latency_ns=0, intra_latency_ns=0)
    link = plan_traffic(Job(parameters=10**12, degrees=degrees, hardware=still), Scheme.ZERO_3)[0]
    assert (link.time_ns or 0) / 1e9 == pytest.approx(60 * (ranks - 1) / ranks)
