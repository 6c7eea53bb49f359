"""Messages that are mostly latency: whether they are, whether it matters, and whose fault it is."""

from dataclasses import replace

import pytest

from tests.support.link_runs import MS, US, gathers, link_run, norm, reduces
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.time import LinkFit
from zprof.rules.transfer.latency_bound_collectives import latency_bound_collectives
from zprof.rules.transfer.small_messages import find_small_messages, rate_small_messages
from zprof.rules.transfer.traffic import is_guess
from zprof.rules.transfer.units_too_small import units_too_small

MIB = 1 << 20
BLOCKS = [f"layers.{layer}" for layer in range(16)]
PARTS = [f"layers.{layer}.{part}" for layer in range(4) for part in ("wq", "wk", "mlp", "norm")]
THREE = [f"layers.{layer}.{part}" for layer in range(5) for part in ("wq", "wk", "mlp")]


def run(latency_ns: int, each_ns: int, *, shows: float = 1.0, units: list[str] = BLOCKS) -> RunAnalysis:
    """16 units, gathered twice and reduced once."""
    return link_run(
        gathers(32, 4 * MIB, each_ns, shows=shows, units=units),
        reduces(16, 4 * MIB, each_ns, shows=shows, units=units),
        norm(latency_ns),
    )


def causes(analysis: RunAnalysis) -> list[Cause]:
    answers = [rule(analysis, None) for rule in (latency_bound_collectives, units_too_small)]
    return [answer.cause for answer in answers if isinstance(answer, Finding)]


@pytest.mark.parametrize(("each_ns", "fires"), [(800 * US, False), (799 * US, True), (600 * US, True)])
def test_half_of_the_time_must_be_latency(each_ns: int, *, fires: bool) -> None:
    assert causes(run(400 * US, each_ns)) == ([Cause.LATENCY_BOUND_COLLECTIVES] if fires else [])


@pytest.mark.parametrize(("shown_ms", "shows"), [(2.4, False), (3.0, False), (3.12, True), (6.0, True)])
def test_it_must_show(shown_ms: float, *, shows: bool) -> None:
    """48 messages of 0.5 ms: 24 ms, of a step of 100 ms."""
    assert (find_small_messages(run(450 * US, 500 * US, shows=shown_ms / 24)) is not None) == shows


@pytest.mark.parametrize(("shown_ms", "worth"), [(3.12, False), (3.8, False), (4.1, True)])
def test_larger_messages_must_win_three_per_cent(shown_ms: float, *, worth: bool) -> None:
    """Of what shows, the first gather and the last reduction stay at least: 1.1 ms; the model errs by 5 %."""
    assert bool(causes(run(450 * US, 500 * US, shows=shown_ms / 24))) == worth


@pytest.mark.parametrize(
    ("latency_ns", "units", "cause"),
    [
        (200 * US, BLOCKS, Cause.UNITS_TOO_SMALL),
        (201 * US, BLOCKS, Cause.LATENCY_BOUND_COLLECTIVES),
        (900 * US, THREE, Cause.LATENCY_BOUND_COLLECTIVES),
        (900 * US, PARTS, Cause.UNITS_TOO_SMALL),
        (900 * US, [], Cause.LATENCY_BOUND_COLLECTIVES),
        (150 * US, [], Cause.UNITS_TOO_SMALL),
    ],
)
def test_whose_fault_it_is(latency_ns: int, units: list[str], cause: Cause) -> None:
    assert causes(run(latency_ns, latency_ns + 50 * US, units=units)) == [cause]


def test_parts_of_blocks_are_named() -> None:
    finding = units_too_small(run(150 * US, 200 * US, units=PARTS), None)
    assert isinstance(finding, Finding)
    assert finding.sentence.startswith("each block is 4 units, of 4.0 MiB in 200.0 µs")
    assert finding.id == "ZP404"


def test_buckets_are_no_units() -> None:
    """Data parallel with tiny buckets: there is nothing wrapped to blame."""
    analysis = link_run(reduces(48, MIB, 200 * US), norm(150 * US))
    training = replace(analysis.training, engine="unknown")
    finding = latency_bound_collectives(replace(analysis, training=training), None)
    assert isinstance(finding, Finding)
    assert "bucket_cap_mb" in finding.fix
    assert "reduce_bucket_size" in finding.fix
    assert "fully_shard" not in finding.fix


def test_the_saving_is_most_of_what_shows() -> None:
    """Compute of 60 ms hides units of twice the size: all but the first and the last message."""
    finding = latency_bound_collectives(run(900 * US, 1000 * US), None)
    assert isinstance(finding, Finding)
    assert 20 * MS < finding.saving_ns[0] <= finding.saving_ns[1] <= 48 * MS


def test_a_launch_costs_a_cpu_rank() -> None:
    messages = (gathers(32, MIB, 100 * US, shows=0), reduces(16, MIB, 100 * US, shows=0), norm(90 * US))
    on_cpu = link_run(*messages, device="cpu", wall_ns=20 * MS, compute_ns=18 * MS, idle_ns=2 * MS)
    assert causes(link_run(*messages, wall_ns=20 * MS, compute_ns=18 * MS)) == []
    finding = units_too_small(on_cpu, None)
    assert isinstance(finding, Finding)
    # 48 launches of 20 us, at least half of which are no more; at most those and the idle time
    assert 0.1 * MS < finding.saving_ns[0] < 0.97 * MS
    assert 2 * MS < finding.saving_ns[1] <= 2.97 * MS


def test_a_fit_over_sizes_goes_before_tiny_messages() -> None:
    analysis = run(10 * US, 500 * US)
    fit = LinkFit(
        kind="all_gather", group="0,1", messages=8, sizes=2, latency_ns=450 * US, algbw_bytes_per_s=1e9,
        busbw_bytes_per_s=5e8, latency_share_ratio=0.9, residual_ratio=0.2,
    )  # fmt: skip
    both = (fit, replace(fit, kind="reduce_scatter"))

    def fitted(**change: object) -> RunAnalysis:
        fits = tuple(replace(one, **change) for one in both)  # type: ignore[arg-type]
        return replace(analysis, time=replace(analysis.time, fits=fits))

    assert causes(analysis) == []
    assert causes(fitted()) == [Cause.LATENCY_BOUND_COLLECTIVES]
    assert causes(fitted(messages=7)) == []
    assert causes(fitted(residual_ratio=0.21)) == []
    assert causes(fitted(group="2,3")) == []


@pytest.mark.parametrize(("size", "tested"), [(64 * MIB, False), (64 * MIB + 1, True)])
def test_not_tested_where_nothing_tells_the_latency(size: int, *, tested: bool) -> None:
    analysis = link_run(gathers(32, size, 500 * US), reduces(16, size, 500 * US))
    for rule in (latency_bound_collectives, units_too_small):
        answer = rule(analysis, None)
        assert (answer is None) == tested
        assert tested or isinstance(answer, Gap)


def test_the_norm_may_be_of_another_group_of_the_same_ranks() -> None:
    """Programs often reduce the loss in the default group, and shard in one of their own."""
    analysis = run(450 * US, 500 * US)
    rows = analysis.collectives
    own = rows["group"].astype(str).where(rows["bytes"] > 64, rows["group"].astype(str) + "#default_pg")
    assert causes(replace(analysis, collectives=rows.assign(group=own))) == causes(analysis) != []
    others = rows["group"].astype(str).where(rows["bytes"] > 64, "4,5")
    assert causes(replace(analysis, collectives=rows.assign(group=others))) == []


def test_a_message_is_tiny_from_a_64th_down() -> None:
    small = replace(norm(450 * US), bytes=4 * MIB // 64)
    messages = (gathers(32, 4 * MIB, 500 * US), reduces(16, 4 * MIB, 500 * US))
    assert causes(link_run(*messages, small)) == [Cause.LATENCY_BOUND_COLLECTIVES]
    assert causes(link_run(*messages, replace(small, bytes=small.bytes + 1))) == []


def test_silent_without_anything_to_send() -> None:
    analysis = run(400 * US, 500 * US)
    alone = replace(
        analysis, run=replace(analysis.run, world_size=1), collectives=analysis.collectives.iloc[:0]
    )
    assert causes(alone) == []
    assert latency_bound_collectives(alone, None) is None
    nothing = replace(analysis, collectives=analysis.collectives.iloc[:0])
    assert isinstance(units_too_small(nothing, None), Gap)


def test_confidence_needs_messages_and_a_model_that_meets_the_step() -> None:
    def confidence(analysis: RunAnalysis) -> Confidence:
        finding = latency_bound_collectives(analysis, None)
        assert isinstance(finding, Finding)
        return finding.confidence

    long, short = 1000 * US, 900 * US
    many = (gathers(32, MIB, long), reduces(16, MIB, long), norm(short))
    assert confidence(link_run(*many, compute_ns=5 * MS)) is Confidence.HIGH
    # so much compute would hide all but the last of them
    hidden = (reduces(48, MIB, long), norm(short))
    assert confidence(link_run(*hidden, compute_ns=900 * MS)) is Confidence.MEDIUM
    few = (gathers(2, MIB, 5 * long), reduces(1, MIB, 5 * long), norm(5 * short))
    assert confidence(link_run(*few, compute_ns=5 * MS)) is Confidence.MEDIUM


@pytest.mark.parametrize(
    ("quick_us", "units", "confidence"),
    [
        (450, [], Confidence.HIGH),
        (449, [], Confidence.LOW),
        (449, BLOCKS, Confidence.LOW),
        (449, PARTS, Confidence.HIGH),
    ],
)
def test_quick_messages_refute_a_latency(quick_us: int, units: list[str], confidence: Confidence) -> None:
    """Of 900 us: two slow sizes on a busy machine look like latency, but each message would take as long."""
    analysis = link_run(
        gathers(28, MIB, 1000 * US, units=units),
        gathers(4, MIB, quick_us * US, units=units, begins_ns=100 * MS),
        reduces(16, MIB, 1000 * US, units=units),
        norm(900 * US),
        compute_ns=5 * MS,
    )
    small = find_small_messages(analysis)
    assert small is not None
    assert rate_small_messages(small) is confidence


@pytest.mark.parametrize(
    ("saving", "guess"), [((0, 90), True), ((1, 4), False), ((1, 2), True), ((1, 3), False), ((2, 2), False)]
)
def test_a_guess_is_below_two_per_cent_in_the_middle(saving: tuple[float, float], *, guess: bool) -> None:
    assert is_guess(saving, 100) == guess


def test_three_units_of_a_block_are_not_called_parts() -> None:
    finding = units_too_small(run(150 * US, 200 * US, units=THREE), None)
    assert isinstance(finding, Finding)
    assert finding.sentence.startswith("32 all_gathers a step")
