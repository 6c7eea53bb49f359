"""retained_gradients tells dropped, accumulated and retained gradients apart."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, memory_run, phase, tenants
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.rules.memory.retained_gradients import retained_gradients

DDP = replace(FACTS, engine="ddp", stage=0)
PLAIN = replace(FACTS, engine="pytorch", stage=None, shard_ranks=None)


def timeline(*steps: tuple[float, ...]) -> MemoryTimeline:
    """MiB of gradients in each forward of each step; a backward of 9 MiB more follows every forward."""
    times, gradients, begins, phases = [], [], [], []
    now = 0
    for number, levels in enumerate(steps):
        begins.append((now, number))
        for level in levels:
            phases += [(now, "forward"), (now + 10, "backward")]
            times += [now, now + 5, now + 10, now + 15]
            gradients += [int((level + extra) * MIB) for extra in (3, 0, 4, 9)]
            now += 20
        phases.append((now, "optimizer"))
        now += 20
    return MemoryTimeline(
        rank=0, device="cpu", time_ns=tuple(times), tenants={"gradients": tuple(gradients)},
        steps=tuple(begins), phases=tuple(phases),
    )  # fmt: skip


def run(*steps: tuple[float, ...], facts: TrainingFacts = FACTS, gradients: float = 12) -> RunAnalysis:
    return memory_run(tenants(gradients=gradients), facts=facts, timelines=(timeline(*steps),))


def found(analysis: RunAnalysis) -> Finding:
    answer = retained_gradients(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_the_last_step_s_gradients_in_every_first_forward() -> None:
    finding = found(run((8,), (8,), facts=PLAIN))
    assert finding.id == "ZP207"
    assert finding.confidence is Confidence.HIGH
    assert "8.0 MiB of the last step's gradients" in finding.sentence
    assert "set_to_none=True" in finding.fix
    assert finding.saving_bytes == (0, 8 * MIB)


@pytest.mark.parametrize(("level", "fires"), [(3.9, False), (4.0, True)])
def test_the_boundary_is_half_of_a_step_s_gradients(level: float, *, fires: bool) -> None:
    assert isinstance(retained_gradients(run((level,), facts=PLAIN), None), Finding) == fires


def test_one_step_without_them_is_no_habit() -> None:
    assert retained_gradients(run((8,), (0,), facts=PLAIN), None) is None


def test_accumulated_gradients_are_there_by_right() -> None:
    assert retained_gradients(run((0, 8, 8, 8), (0, 8, 8, 8), facts=PLAIN), None) is None
    assert retained_gradients(run((0, 8, 8), facts=replace(FACTS, stage=2)), None) is None


def test_whole_gradients_between_micro_batches_where_they_should_be_shards() -> None:
    """A share is 8 MiB; 1.25 of it is 10."""
    finding = found(run((0, 32, 32), facts=replace(FACTS, stage=2), gradients=32))
    assert "kept whole" in finding.sentence
    assert finding.confidence is Confidence.HIGH
    assert finding.saving_bytes == (0, 24 * MIB)
    assert "set_requires_gradient_sync" in finding.fix


@pytest.mark.parametrize(("level", "fires"), [(9.9, False), (10.1, True)])
def test_the_boundary_is_a_quarter_above_the_share(level: float, *, fires: bool) -> None:
    assert isinstance(retained_gradients(run((0, level), gradients=30), None), Finding) == fires


def test_gradients_that_grow_over_micro_batches() -> None:
    assert "grow from micro-batch" in found(run((0, 12, 20, 30), gradients=30)).sentence


def test_whole_gradients_are_the_rule_without_sharding() -> None:
    assert retained_gradients(run((0, 32, 32), facts=DDP, gradients=32), None) is None


def test_buckets_that_are_the_gradients_stay() -> None:
    held = tenants(gradients=32, buffers=0)
    views = memory_run(held, facts=DDP, timelines=(timeline((32,)),))
    assert retained_gradients(views, None) is None
    copies = memory_run(tenants(gradients=32, buffers=32), facts=DDP, timelines=(timeline((32,)),))
    assert isinstance(retained_gradients(copies, None), Finding)


def test_an_engine_that_keeps_them_by_design_is_not_accused() -> None:
    finding = found(run((32,), facts=replace(DDP, engine="reference"), gradients=32))
    assert finding.confidence is Confidence.LOW
    assert "allocated once" in finding.fix


def test_phases_in_which_gradients_belong_bound_the_saving() -> None:
    held = tenants(gradients=12)
    others = (phase("forward", held), phase("optimizer", {**held, Tenant.ACTIVATIONS: 17 * MIB}))
    analysis = memory_run(held, facts=PLAIN, timelines=(timeline((8,)),), phases=others)
    assert found(analysis).saving_bytes == (0, 3 * MIB)


def at_phases(gradients: float, facts: TrainingFacts = PLAIN) -> RunAnalysis:
    held = tenants(gradients=gradients)
    return memory_run(held, facts=facts, phases=(phase("forward", held), phase("backward", held)))


def test_without_a_timeline_it_may_be_accumulation() -> None:
    assert found(at_phases(8)).confidence is Confidence.LOW
    assert retained_gradients(at_phases(8, replace(PLAIN, micro_batches=4)), None) is None
    assert found(at_phases(32, replace(FACTS, stage=2))).confidence is Confidence.MEDIUM
    assert retained_gradients(at_phases(0), None) is None


def test_no_forward_is_not_tested() -> None:
    only = memory_run(phases=(phase("other", tenants()),))
    gap = retained_gradients(only, None)
    assert isinstance(gap, Gap)
    assert "model=model" in gap.remedy
    assert retained_gradients(memory_run(phases=()), None) is None
    assert retained_gradients(memory_run(per_rank=()), None) is None


def test_healthy_runs_are_left_alone() -> None:
    assert retained_gradients(run((0,), (0,)), None) is None
    assert retained_gradients(memory_run(), None) is None


def test_a_timeline_without_phases_has_no_forwards() -> None:
    without = replace(timeline((8,)), phases=())
    analysis = memory_run(phases=(phase("other", tenants()),), timelines=(without,))
    assert isinstance(retained_gradients(analysis, None), Gap)


def test_a_quarter_above_the_share_itself_is_too_much() -> None:
    finding = found(run((0, 10), gradients=30))
    assert "kept whole" in finding.sentence  # one micro-batch more is no growth


def test_what_is_sharded_over_one_rank_is_whole() -> None:
    assert retained_gradients(run((0, 41), facts=replace(FACTS, shard_ranks=1), gradients=45), None) is None


@pytest.mark.parametrize(("buffers", "fires"), [(16, True), (15.9, False)])
def test_buckets_of_half_of_the_gradients_are_beside_them(buffers: float, *, fires: bool) -> None:
    held = tenants(gradients=32, buffers=buffers)
    copies = memory_run(held, facts=DDP, timelines=(timeline((32,)),))
    assert isinstance(retained_gradients(copies, None), Finding) == fires
