"""activations_dominate: from half of the peak on, unless they are recomputed already."""

from collections.abc import Callable

import pytest

from tests.support.peaks import MIB, allocation, memory_run, part, phase, phases_of, tenants, with_rank
from tests.support.rule_runs import Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant
from zprof.rules.memory.activations_dominate import activations_dominate

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
HELD = tenants(activations=160)  # beside 46 MiB
GUESSED = {Basis.TAGGED: 0, Basis.RULE: sum(HELD.values())}
LOGITS = (allocation(60, Tenant.ACTIVATIONS, "lm_head"),) * 2


def holding(activations: float) -> RunAnalysis:
    return memory_run(tenants(activations=activations))


def recomputing(mib: float) -> RunAnalysis:
    """So much is recomputed, and 160 MiB in all."""
    saved = part(Tenant.ACTIVATIONS, "saved", 160 - mib)
    return with_rank(memory_run(HELD), parts=(saved, part(Tenant.ACTIVATIONS, "recomputed", mib)))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: holding(45.9), None),
        (lambda: holding(46), MEDIUM),  # half of the peak
        (lambda: holding(68.9), MEDIUM),
        (lambda: holding(69), HIGH),  # three fifths
        (lambda: recomputing(8), None),  # a twentieth
        (lambda: recomputing(7.9), HIGH),
        (lambda: memory_run(HELD, phases=(phase("recompute", HELD),)), None),
        (lambda: memory_run(HELD, top=LOGITS), None),
        (lambda: memory_run(HELD, modules=("encoder",)), MEDIUM),
        (lambda: memory_run(HELD, ranks=1), HIGH),
        (lambda: with_rank(memory_run(HELD), basis_bytes=GUESSED), LOW),
        (lambda: with_rank(memory_run(HELD), lower_bound=True), LOW),
        (lambda: memory_run({tenant: size // 1000 for tenant, size in HELD.items()}), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(activations_dominate, run()) == expected


@pytest.mark.parametrize(
    ("run", "saving"),
    [
        # eight blocks: 1 - 1/8 less a quarter, and less a seventeenth
        (lambda: memory_run(HELD), (100 * MIB, int(160 * MIB * (1 - 1 / 17 - 1 / 8)))),
        # blocks unknown: two, and 32 at most
        (lambda: memory_run(HELD, modules=("encoder",)), (40 * MIB, int(160 * MIB * (1 - 1 / 17 - 1 / 32)))),
        # no lower than a phase without activations: 206 MiB less 194
        (
            lambda: memory_run(
                HELD, phases=(*phases_of(HELD), phase("optimizer", tenants(activations=0, temporary=150)))
            ),
            (12 * MIB, 12 * MIB),
        ),
    ],
)
def test_checkpoints_free(run: Callable[[], RunAnalysis], saving: tuple[int, int]) -> None:
    finding = found(activations_dominate, run())
    assert (finding.id, finding.saving_bytes) == ("ZP203", saving)
