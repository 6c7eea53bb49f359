"""replicated_state: whole states on several ranks, by plan (stage 0) or against the stage."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, gpu, memory_run, tenants, with_rank
from tests.support.rule_runs import GAP, Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.rules.memory.replicated_state import replicated_state

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
WHOLE = {"parameters": 32, "gradients": 32, "optimizer_state": 64}
DDP = replace(FACTS, engine="ddp", stage=0)


def with_states(analysis: RunAnalysis, **mib: float) -> RunAnalysis:
    return with_rank(analysis, state_bytes={Tenant(name): int(size * MIB) for name, size in mib.items()})


def replicated(activations: float = 10, facts: TrainingFacts = DDP, **more: object) -> RunAnalysis:
    """128 MiB of states on each rank, beside activations."""
    held = tenants(32, 32, 64, activations, 0, 0)
    return with_states(memory_run(held, facts=facts, **more), **WHOLE)  # type: ignore[arg-type]


def on_device(total_mib: int) -> RunAnalysis:
    """A peak of 138 MiB."""
    run = replace(gpu(tenants(32, 32, 64, 10, 0, 0), device_total_bytes=total_mib * MIB), training=DDP)
    return with_states(run, **WHOLE)


def with_odd_rank(optimizer: float | None, **states: float) -> RunAnalysis:
    """One rank keeps another optimizer state, or nobody knows what it keeps."""
    analysis = with_states(replicated(), **(states or WHOLE))
    first, *others = analysis.memory.per_rank
    if optimizer is None:
        ranks = (*others, replace(first, rank=4, state_bytes=None))
    else:
        held = {**(first.state_bytes or {}), Tenant.OPTIMIZER_STATE: int(optimizer * MIB)}
        ranks = (replace(first, state_bytes=held), *others)
    return replace(analysis, memory=replace(analysis.memory, per_rank=ranks))


def stage(number: int, psi: int | None = FACTS.parameters, **mib: float) -> RunAnalysis:
    """A run of ``psi`` parameters."""
    facts = replace(FACTS, stage=number, parameters=psi)
    return with_states(memory_run(tenants(32, 32, 64, 10, 0, 0), facts=facts), **mib)


def beside_little(optimizer: float) -> RunAnalysis:
    """Three quarters of 8 MiB are 6 of 120."""
    return with_states(memory_run(tenants(10, 10, 20, 70, 5, 5), facts=DDP), optimizer_state=optimizer)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: replicated(32), MEDIUM),  # four fifths of the peak
        (lambda: replicated(34), LOW),
        (lambda: on_device(276), MEDIUM),  # half of the device is room
        (lambda: on_device(277), LOW),
        (lambda: with_odd_rank(48, parameters=25, gradients=25, optimizer_state=50), LOW),  # within 2 %
        (lambda: with_odd_rank(47.9, parameters=25, gradients=25, optimizer_state=50), None),
        (lambda: with_odd_rank(52.1, parameters=25, gradients=25, optimizer_state=50), None),
        (lambda: beside_little(8), LOW),  # a twentieth of the peak
        (lambda: beside_little(7.9), None),
        # against the stage: nine tenths of the whole
        (lambda: stage(2, **WHOLE), HIGH),
        (lambda: stage(1, 10 * MIB, optimizer_state=72), HIGH),
        (lambda: stage(1, 10 * MIB, optimizer_state=71.9), None),
        # the formula of each stage
        (lambda: stage(1, parameters=32, gradients=32, optimizer_state=16), None),
        (lambda: stage(2, parameters=32, gradients=8, optimizer_state=16), None),
        (lambda: stage(3, parameters=8, gradients=8, optimizer_state=16), None),
        (lambda: memory_run(facts=replace(FACTS, stage=None)), GAP),
        (lambda: memory_run(facts=replace(FACTS, parameters=None)), GAP),
        (lambda: with_rank(replicated(), state_bytes=None), GAP),
        (lambda: replicated(ranks=1), None),
        (lambda: replicated(facts=replace(DDP, model_parallel_ranks=4)), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(replicated_state, run()) == expected


@pytest.mark.parametrize(
    ("run", "saving_mib"),
    [
        (replicated, (64, 96)),  # three quarters, less the eight units of 4 MiB that stage 3 needs
        (lambda: replicated(ranks=2), (32, 64)),
        (lambda: with_odd_rank(None), (64, 96)),  # a rank whose states nobody knows excuses no other
        (lambda: stage(2, **WHOLE), (36, 72)),  # 96 MiB where 24 are its share
    ],
)
def test_sharding_frees(run: Callable[[], RunAnalysis], saving_mib: tuple[int, int]) -> None:
    finding = found(replicated_state, run())
    assert (finding.id, finding.saving_bytes) == ("ZP205", tuple(mib * MIB for mib in saving_mib))
