"""attention_scores, weight_copies and states_dominate: what an imported history holds, and what to change."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import MIB, memory_run, part, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.attention_scores import CAUSE as attention_scores
from zprof.causes.states_dominate import CAUSE as states_dominate
from zprof.causes.weight_copies import CAUSE as weight_copies
from zprof.model.findings import Confidence
from zprof.model.memory import Allocation, Basis, HistoryWindow, WindowKind
from zprof.model.tenants import WEIGHT_COPY, Tenant

ATTENTION = "/home/user/model.py:40 causal_attention"
SOFTMAX = "/home/user/ops.py:9 softmax"


def with_top(*top: Allocation) -> RunAnalysis:
    return memory_run(tenants(activations=60), top=top, phases=())


def made(mib: float, count: int, *stack: str, operator: str = "", confidence: str = "high") -> Allocation:
    return Allocation(
        rank=0,
        bytes=round(mib * MIB),
        smallest_bytes=round(mib * MIB),
        tenant=Tenant.ACTIVATIONS.value,
        sub="saved",
        module="",
        stack=stack,
        operator=operator,
        basis=Basis.RULE,
        confidence=Confidence(confidence),
        count=count,
        total_bytes=round(mib * MIB) * count,
    )


def history(kind: WindowKind, **held: float) -> RunAnalysis:
    run = memory_run(tenants(**held), phases=())
    window = HistoryWindow(rank=0, kind=kind, steps=1, micro_batches=1)
    return replace(run, memory=replace(run.memory, windows=(window,)))


SCORES = made(2, 4, SOFTMAX, ATTENTION)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: with_top(SCORES), "high"),
        (lambda: with_top(made(2, 4, SOFTMAX, ATTENTION, confidence="medium")), "medium"),
        (lambda: with_top(made(2, 4, ATTENTION, operator="_softmax")), "high"),
        (lambda: with_top(made(2, 4, SOFTMAX)), None),  # the softmax of a loss
        (lambda: with_top(made(2, 4, ATTENTION)), None),  # a projection
        (lambda: with_top(made(0.1, 4, SOFTMAX, ATTENTION)), None),
        (lambda: with_top(replace(SCORES, tenant=Tenant.PARAMETERS.value)), None),
    ],
)
def test_attention_scores(run: Run, expected: str | None) -> None:
    assert judged(attention_scores, run()) == expected


def test_only_what_has_the_size_of_the_scores_counts() -> None:
    others = (
        made(1, 2, ATTENTION),
        made(2, 1, ATTENTION),
        made(0.25, 16, SOFTMAX, ATTENTION),
        made(3, 1, ATTENTION),
    )
    finding = found(attention_scores, with_top(SCORES, *others))
    assert finding.saving_bytes == (12 * MIB, 12 * MIB)


@pytest.mark.parametrize(
    ("kind", "tenant", "saving"),
    [
        (WindowKind.INFERENCE, Tenant.TEMPORARY_BUFFERS, (4 * MIB, 8 * MIB)),
        (WindowKind.TRAINING, Tenant.ACTIVATIONS, (4 * MIB, 4 * MIB)),
    ],
)
def test_copies_of_weights(kind: WindowKind, tenant: Tenant, saving: tuple[int, int]) -> None:
    copies = replace(part(tenant, WEIGHT_COPY, 4, Basis.RULE), confidence=Confidence.HIGH)
    run = with_rank(history(kind), parts=(copies, part(tenant, "cast", 30)))
    finding = found(weight_copies, run)
    assert (finding.saving_bytes, finding.confidence) == (saving, Confidence.HIGH)
    small = with_rank(history(kind), parts=(replace(copies, bytes=MIB),))
    assert judged(weight_copies, small) is None


def test_states_that_fill_a_device() -> None:
    full = history(WindowKind.TRAINING, parameters=20, gradients=20, optimizer=40, activations=1, buffers=0)
    finding = found(states_dominate, full)
    assert finding.saving_bytes == (30 * MIB, 70 * MIB)
    assert judged(states_dominate, history(WindowKind.TRAINING)) is None
    recorded = replace(full, memory=replace(full.memory, windows=()))
    assert judged(states_dominate, recorded) is None  # its ranks are known: other rules judge it
