"""retained_gradients: dropped, accumulated and retained gradients are told apart."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import FACTS, MIB, memory_run, phase, tenants
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.retained_gradients import CAUSE as retained_gradients
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

DDP = replace(FACTS, engine="ddp", stage=0)
PLAIN = replace(FACTS, engine="pytorch", stage=None, shard_ranks=None)
STAGE_2 = replace(FACTS, stage=2)


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


def run(
    *steps: tuple[float, ...], facts: TrainingFacts = FACTS, gradients: float = 12, **held: float
) -> RunAnalysis:
    return memory_run(tenants(gradients=gradients, **held), facts=facts, timelines=(timeline(*steps),))


def at_phases(gradients: float, facts: TrainingFacts = PLAIN) -> RunAnalysis:
    """Without a timeline."""
    held = tenants(gradients=gradients)
    return memory_run(held, facts=facts, phases=(phase("forward", held), phase("backward", held)))


def bounded() -> RunAnalysis:
    """In another phase, in which gradients belong, 3 MiB less are held."""
    held = tenants(gradients=12)
    others = (phase("forward", held), phase("optimizer", {**held, Tenant.ACTIVATIONS: 17 * MIB}))
    return memory_run(held, facts=PLAIN, timelines=(timeline((8,)),), phases=others)


OTHER = (phase("other", tenants()),)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: run((8,), (8,), facts=PLAIN), "high"),
        (lambda: run((4,), facts=PLAIN), "high"),
        (lambda: run((8,), (0,), facts=PLAIN), None),
        (lambda: run((0,), (0,)), None),
        # accumulated gradients are there by right: a share is 8 MiB, a quarter more is too much
        (lambda: run((0, 8, 8, 8), (0, 8, 8, 8), facts=PLAIN), None),
        (lambda: run((0, 8, 8), facts=STAGE_2), None),
        (lambda: run((0, 10), gradients=30), "high"),
        (lambda: run((0, 32, 32), facts=STAGE_2, gradients=32), "high"),
        (lambda: run((0, 32, 32), facts=DDP, gradients=32), None),
        (lambda: run((0, 41), facts=replace(FACTS, shard_ranks=1), gradients=45), None),
        # buckets that are the gradients stay; copies of half of them do not
        (lambda: run((32,), facts=DDP, gradients=32, buffers=16), "high"),
        (lambda: run((32,), facts=replace(DDP, engine="reference"), gradients=32), "low"),  # by design
        # without a timeline it may be accumulation
        (lambda: at_phases(8), "low"),
        (lambda: at_phases(8, replace(PLAIN, micro_batches=4)), None),
        (lambda: at_phases(32, STAGE_2), "medium"),
        (lambda: at_phases(0), None),
        (lambda: memory_run(phases=OTHER), "gap"),
        (lambda: memory_run(phases=OTHER, timelines=(replace(timeline((8,)), phases=()),)), "gap"),
        (lambda: memory_run(phases=()), None),
        (lambda: memory_run(per_rank=()), None),
        (memory_run, None),
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(retained_gradients, run()) == expected


@pytest.mark.parametrize(
    ("run", "fix", "saving_mib"),
    [
        (lambda: run((8,), (8,), facts=PLAIN), "set_to_none=True", 8),
        (lambda: run((0, 32, 32), facts=STAGE_2, gradients=32), "set_requires_gradient_sync", 24),
        (bounded, "set_to_none=True", 3),
    ],
)
def test_what_dropping_them_frees(run: Run, fix: str, saving_mib: int) -> None:
    finding = found(retained_gradients, run())
    assert (finding.id, finding.saving_bytes) == ("ZP207", (0, saving_mib * MIB))
    assert fix in finding.fix
