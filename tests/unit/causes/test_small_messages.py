"""latency_bound_collectives and units_too_small: messages that are mostly latency, and whose fault it is."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.link_runs import MS, US, Sent, gathers, link_run, norm, reduces
from tests.support.rule_runs import (
    Run,
    fires,
    found,
    judged,
    on_one_rank,
    values,
    without_collectives,
)
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.latency_bound_collectives import CAUSE as latency_bound_collectives
from zprof.causes.units_too_small import CAUSE as units_too_small
from zprof.model.findings import Confidence
from zprof.model.time import LinkFit
from zprof.step.message_sizes import (
    SmallMessages,
    count_units_per_block,
    find_block,
    find_small_messages,
    rate_small_messages,
)

LATENCY, UNITS = "latency_bound_collectives", "units_too_small"
MIB = 1 << 20
BLOCKS = [f"layers.{layer}" for layer in range(16)]
THREE = [f"layers.{layer}.{part}" for layer in range(5) for part in ("wq", "wk", "mlp")]
PARTS = [f"layers.{layer}.{part}" for layer in range(4) for part in ("wq", "wk", "mlp", "norm")]


def run(
    latency_us: int, each_us: int, *, shown_ms: float | None = None, units: list[str] = BLOCKS
) -> RunAnalysis:
    """16 units, gathered twice and reduced once; all is exposed, or so much of a step of 100 ms."""
    shows = 1.0 if shown_ms is None else shown_ms * 1_000 / (48 * each_us)
    more = {"shows": shows, "units": units}
    return link_run(
        gathers(32, 4 * MIB, each_us * US, **more), reduces(16, 4 * MIB, each_us * US, **more),
        norm(latency_us * US),
    )  # fmt: skip


def causes(analysis: RunAnalysis) -> set[str]:
    return {cause.name for cause in (latency_bound_collectives, units_too_small) if fires(cause, analysis)}


def fitted(**change: object) -> RunAnalysis:
    """A fit over sizes says what tiny messages of 10 us do not."""
    fit = LinkFit(
        kind="all_gather", group="0,1", messages=8, sizes=2, latency_ns=450 * US, algbw_bytes_per_s=1e9,
        busbw_bytes_per_s=5e8, latency_share_ratio=0.9, residual_ratio=0.25,
    )  # fmt: skip
    analysis = run(10, 500)
    fits = tuple(replace(fit, kind=kind, **change) for kind in ("all_gather", "reduce_scatter"))
    return replace(analysis, time=replace(analysis.time, fits=fits))


def norm_in(group: str) -> RunAnalysis:
    """The norm is reduced in another group."""
    analysis = run(450, 500)
    rows = analysis.collectives
    return replace(analysis, collectives=changed(rows, rows.ints("bytes") <= 64, group=group))


def with_tiny(size: int) -> RunAnalysis:
    tiny = replace(norm(450 * US), bytes=size)
    return link_run(gathers(32, 4 * MIB, 500 * US), reduces(16, 4 * MIB, 500 * US), tiny)


def hidden_launches(device: str) -> RunAnalysis:
    """All is hidden, but a CPU rank launches 48 times for 20 us."""
    sent = (gathers(32, MIB, 100 * US, shows=0), reduces(16, MIB, 100 * US, shows=0), norm(90 * US))
    return link_run(*sent, device=device, wall_ns=20 * MS, compute_ns=18 * MS, idle_ns=2 * MS)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: run(400, 800), set()),  # half latency
        # larger messages must win 3 %: the first gather and the last reduction stay
        (lambda: run(450, 500, shown_ms=3.8), set()),  # wins less than 3 %
        (lambda: run(450, 500, shown_ms=4.1), {LATENCY}),  # wins 3 %
        # an ordinary latency, or more than three units per block, are the fault of the units
        (lambda: run(200, 250), {UNITS}),  # 200 us
        (lambda: run(201, 251), {LATENCY}),  # more than 200 us
        (lambda: run(900, 950, units=THREE), {LATENCY}),  # three units per block
        (lambda: run(900, 950, units=PARTS), {UNITS}),  # four units per block
        (lambda: run(900, 950, units=[]), {LATENCY}),  # nameless
        (lambda: run(150, 200, units=[]), {UNITS}),  # nameless and ordinary
        (lambda: link_run(reduces(48, MIB, 200 * US), norm(150 * US)), {LATENCY}),  # buckets
        (lambda: hidden_launches("cuda"), set()),  # launches of a device
        (lambda: hidden_launches("cpu"), {UNITS}),  # launches of a CPU
        # what tells the latency
        (lambda: run(10, 500), set()),  # tiny messages are quick
        (fitted, {LATENCY}),  # fit
        (lambda: fitted(messages=7), set()),  # fit of seven messages
        (lambda: fitted(residual_ratio=0.26), set()),  # fit that misses
        (lambda: fitted(group="2,3"), set()),  # fit of another group
        pytest.param(lambda: norm_in("0,1#default_pg"), {LATENCY}, id="norm in a group of the same ranks"),
        (lambda: norm_in("4,5"), set()),  # norm in a group of other ranks
        (lambda: with_tiny(1024), {LATENCY}),  # a KiB is tiny
        (lambda: with_tiny(1025), set()),  # more is not
        (lambda: on_one_rank(run(400, 500)), set()),  # one rank
    ],
)
def test_whether_and_whose_fault_it_is(run: Run, expected: set[str]) -> None:
    assert causes(run()) == expected


def unknown_latency(size: int) -> RunAnalysis:
    return link_run(gathers(32, size, 500 * US), reduces(16, size, 500 * US))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: unknown_latency(64 * MIB), "gap"),
        (lambda: unknown_latency(64 * MIB + 1), None),  # surely large
        (lambda: on_one_rank(unknown_latency(MIB)), None),
        (lambda: without_collectives(run(400, 500)), "gap"),
        (lambda: on_one_rank(without_collectives(run(400, 500))), None),
    ],
)
def test_where_nothing_tells_the_latency_it_is_not_tested(run: Run, expected: str | None) -> None:
    for cause in (latency_bound_collectives, units_too_small):
        assert judged(cause, run()) == expected


def test_savings() -> None:
    """Compute of 60 ms hides units of twice the size; of 48 launches at least half are no more."""
    low, high = found(latency_bound_collectives, run(900, 1000)).saving_ns
    assert 20 * MS < low <= high <= 48 * MS
    low, high = found(units_too_small, hidden_launches("cpu")).saving_ns
    assert 0.1 * MS < low < 0.97 * MS
    assert 2 * MS < high <= 2.97 * MS


def test_units_of_a_block_are_evidence() -> None:
    finding = found(units_too_small, run(150, 200, units=PARTS))
    assert (finding.id, values(finding, "count")[-1]) == ("ZP404", 4)


def seen(*sent: Sent, compute_ns: int = 5 * MS) -> SmallMessages:
    """Messages of 1 ms that are latency of 0.9 ms, next to little compute."""
    messages = sent or (gathers(32, MIB, MS), reduces(16, MIB, MS))
    small = find_small_messages(link_run(*messages, norm(900 * US), compute_ns=compute_ns))
    assert small is not None
    return small


def missing(ratio: float) -> SmallMessages:
    """The model misses this share of what is exposed."""
    return replace(seen(), step=replace(seen().step, missed_ns=ratio * seen().step.exposed_ns))


def few(rows: int) -> SmallMessages:
    step = seen().step
    assert step.traffic.gathers is not None
    fewer = replace(step.traffic.gathers, rows=step.traffic.gathers.rows.at(slice(rows)))
    return replace(seen(), step=replace(step, traffic=replace(step.traffic, gathers=fewer)))


def quick(each_us: int, count: int = 4, units: list[str] | None = None) -> SmallMessages:
    """Some of 32 gathers are quicker: of 900 us, each would take as long."""
    more = {"units": units or []}
    fast = gathers(count, MIB, each_us * US, begins_ns=100 * MS, **more)
    return seen(gathers(32 - count, MIB, MS, **more), fast, reduces(16, MIB, MS))


@pytest.mark.parametrize(
    ("small", "confidence"),
    [
        (seen, "high"),  # met
        (lambda: seen(reduces(48, MIB, MS), compute_ns=900 * MS), "medium"),  # compute would hide it
        (lambda: missing(0.51), "medium"),  # misses more
        (lambda: few(9), "medium"),  # nine messages
        (lambda: quick(449), "low"),  # quicker
        (lambda: quick(449, units=BLOCKS), "low"),  # quicker, of blocks
        (lambda: quick(449, units=PARTS), "high"),  # quicker, of parts of blocks
    ],
)
def test_confidence(small: Callable[[], SmallMessages], confidence: Confidence) -> None:
    assert rate_small_messages(small()) == confidence


@pytest.mark.parametrize(
    ("unit", "block"),
    [
        ("layers.3.attn.wq", "layers.3"),
        ("layers.3", "layers.3"),
        ("model.layers.12.mlp.experts.7.w1 [pg=8]", "model.layers.12"),
        ("conv2d.weight", None),
        ("FSDP.all_gather", None),
        ("", None),
        ("a" * 1_100 + ".1", None),  # longer than names of modules are
    ],
)
def test_the_block_of_a_unit(unit: str, block: str | None) -> None:
    assert find_block(unit) == block


def test_units_per_block_are_those_of_the_median_block_and_names_count_once() -> None:
    assert count_units_per_block([*PARTS, *PARTS, "embedding", "layers.3"]) == 4
    assert count_units_per_block(["layers.0", "layers.1"]) == 1
    assert count_units_per_block(["embedding", "head"]) is None
