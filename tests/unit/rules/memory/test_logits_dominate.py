"""logits_dominate: the output layer's tensors among the largest, by name or by size."""

from dataclasses import replace

import pytest

from tests.support.memories import HOSTILE
from tests.support.peaks import MIB, allocation, memory_run, tenants
from tests.support.rule_runs import Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.memory import Allocation, Basis
from zprof.model.tenants import Tenant
from zprof.rules.memory.logits_dominate import logits_dominate

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
BLOCK = allocation(2, Tenant.ACTIVATIONS, "layers.0.mlp")


def acts(module: str, *mib: float) -> tuple[Allocation, ...]:
    return tuple(allocation(size, Tenant.ACTIVATIONS, module) for size in mib)


def temps(module: str, *mib: float) -> tuple[Allocation, ...]:
    return tuple(allocation(size, Tenant.TEMPORARY_BUFFERS, module, "act_grad") for size in mib)


def logits(module: str, mib: float = 20) -> tuple[Allocation, ...]:
    """Three tensors of the output, and one of a block."""
    return (*acts(module, mib), *temps(module, mib, mib), BLOCK)


def run(*top: Allocation, activations: float = 60) -> RunAnalysis:
    """164 MiB in all."""
    return memory_run(tenants(activations=activations, temporary=60), top=top)


HEAD = logits("lm_head")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        *((run(*logits(name)), HIGH) for name in ("lm_head", "module.loss", "model.lm_head", "output")),
        (run(*logits("_orig_mod.criterion.cross_entropy")), HIGH),
        *((run(*logits(name)), None) for name in ("layers.0.attention.output", "layers.3.head", "heads")),
        (run(*logits("lm_head", 10.9)), None),  # a fifth of 164 MiB is 32.8
        (run(*logits("lm_head", 11)), HIGH),
        (run(*acts("lm_head", 16), *temps("lm_head", 16), BLOCK, activations=56), HIGH),  # of 160 exactly
        (run(*acts("lm_head", 40), BLOCK), MEDIUM),
        (run(*acts("lm_head", 20), *acts("", 90), BLOCK), None),  # another size in the root module
        # without a name: several, far above the rest
        (run(*logits("module")), LOW),
        (run(*logits("module"), *acts("layers.0.mlp", 6)), None),
        (run(*logits("module")[:3]), None),
        (run(*acts("", 60), BLOCK), None),
        (run(*temps("", 40, 40), *acts("layers.0", 10)), LOW),
        (run(*temps("", 40, 40), *acts("layers.0", 10.1)), None),
        (run(*temps("", 40, 20), BLOCK), LOW),
        (run(*temps("", 40, 19.9), BLOCK), None),
        (run(allocation(60, Tenant.PARAMETERS, "lm_head", "weight"), BLOCK), None),
        (run(allocation(60, Tenant.COMMUNICATION_BUFFERS, "lm_head", "gathered_param"), BLOCK), None),
        (run(*(replace(row, basis=Basis.RULE) for row in HEAD)), LOW),
        (run(*(replace(row, rank=1) for row in HEAD)), None),  # not the largest rank's
    ],
)
def test_thresholds(run: RunAnalysis, expected: Answer) -> None:
    assert judged(logits_dominate, run) == expected


def test_smaller_pieces_free_most_of_them() -> None:
    finding = found(logits_dominate, run(*HEAD))
    assert (finding.id, finding.saving_bytes) == ("ZP204", (40 * MIB, int(52.5 * MIB)))


@pytest.mark.parametrize(
    ("more", "counted"),
    [
        ((), 2),
        (acts("lm_head", 5), 3),  # a quarter of the largest in the output layer
        (acts("lm_head", 4.9), 2),
        (acts("", 10, 40), 4),  # half of it to twice it in the root module: the loss copies to fp32
        (acts("", 9.9, 41), 2),
    ],
)
def test_sizes_that_belong_to_the_logits(more: tuple[Allocation, ...], counted: int) -> None:
    finding = found(logits_dominate, run(*HEAD[:2], *more))
    assert len(finding.evidence) == 1 + counted  # the peak, and each of them


def test_a_hostile_name_steers_nothing() -> None:
    finding = found(logits_dominate, run(*logits(f"lm_head.{HOSTILE.replace('.0', '')}" + "x" * 500)))
    assert finding.sentence.isprintable()
    assert len(finding.sentence) < 400
    assert "\x1b" not in finding.fix + finding.disprove + "".join(fact.what for fact in finding.evidence)
