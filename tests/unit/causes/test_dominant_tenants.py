"""activations_dominate and logits_dominate: what stays for the backward, and the output layer."""

import pytest
from msgspec.structs import replace

from tests.support.memories import HOSTILE
from tests.support.peaks import MIB, allocation, memory_run, part, phase, phases_of, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.activations_dominate import CAUSE as activations_dominate
from zprof.causes.logits_dominate import CAUSE as logits_dominate
from zprof.model.memory import Allocation, Basis
from zprof.model.tenants import Tenant

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
        (lambda: holding(46), "medium"),  # half of the peak
        (lambda: holding(69), "high"),  # three fifths
        (lambda: recomputing(8), None),  # a twentieth
        (lambda: memory_run(HELD, phases=(phase("recompute", HELD),)), None),
        (lambda: memory_run(HELD, top=LOGITS), None),
        (lambda: memory_run(HELD, modules=("encoder",)), "medium"),
        (lambda: memory_run(HELD, ranks=1), "high"),
        (lambda: with_rank(memory_run(HELD), basis_bytes=GUESSED), "low"),
        (lambda: with_rank(memory_run(HELD), lower_bound=True), "low"),
        (lambda: memory_run({tenant: size // 1000 for tenant, size in HELD.items()}), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_activations_dominate(run: Run, expected: str | None) -> None:
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
def test_checkpoints_free(run: Run, saving: tuple[int, int]) -> None:
    finding = found(activations_dominate, run())
    assert (finding.id, finding.saving_bytes) == ("ZP203", saving)


BLOCK = allocation(2, Tenant.ACTIVATIONS, "layers.0.mlp")


def acts(module: str, *mib: float) -> tuple[Allocation, ...]:
    return tuple(allocation(size, Tenant.ACTIVATIONS, module) for size in mib)


def temps(module: str, *mib: float) -> tuple[Allocation, ...]:
    return tuple(allocation(size, Tenant.TEMPORARY_BUFFERS, module, "act_grad") for size in mib)


def logits(module: str, mib: float = 20) -> tuple[Allocation, ...]:
    """Three tensors of the output, and one of a block."""
    return (*acts(module, mib), *temps(module, mib, mib), BLOCK)


def with_top(*top: Allocation, activations: float = 60) -> RunAnalysis:
    """164 MiB in all."""
    return memory_run(tenants(activations=activations, temporary=60), top=top)


HEAD = logits("lm_head")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        *(
            (with_top(*logits(name)), "high")
            for name in ("lm_head", "module.loss", "model.lm_head", "output")
        ),
        (with_top(*logits("_orig_mod.criterion.cross_entropy")), "high"),
        *(
            (with_top(*logits(name)), None)
            for name in ("layers.0.attention.output", "layers.3.head", "heads")
        ),
        (with_top(*logits("lm_head", 10.9)), None),  # a fifth of 164 MiB is 32.8
        (
            with_top(*acts("lm_head", 16), *temps("lm_head", 16), BLOCK, activations=56),
            "high",
        ),  # of 160 exactly
        (with_top(*acts("lm_head", 40), BLOCK), "medium"),
        (with_top(*acts("lm_head", 20), *acts("", 90), BLOCK), None),  # another size in the root module
        # without a name: several, far above the rest
        (with_top(*logits("module")), "low"),
        (with_top(*logits("module"), *acts("layers.0.mlp", 6)), None),
        (with_top(*logits("module")[:3]), None),
        (with_top(*acts("", 60), BLOCK), None),
        (with_top(*temps("", 40, 40), *acts("layers.0", 10)), "low"),
        (with_top(*temps("", 40, 20), BLOCK), "low"),
        (with_top(allocation(60, Tenant.PARAMETERS, "lm_head", "weight"), BLOCK), None),
        (with_top(allocation(60, Tenant.COMMUNICATION_BUFFERS, "lm_head", "gathered_param"), BLOCK), None),
        (with_top(*(replace(row, basis=Basis.RULE) for row in HEAD)), "low"),
        (with_top(*(replace(row, rank=1) for row in HEAD)), None),  # not the largest rank's
    ],
)
def test_logits_dominate(run: RunAnalysis, expected: str | None) -> None:
    assert judged(logits_dominate, run) == expected


def test_smaller_pieces_free_most_of_them() -> None:
    finding = found(logits_dominate, with_top(*HEAD))
    assert (finding.id, finding.saving_bytes) == ("ZP204", (40 * MIB, int(52.5 * MIB)))


def test_a_hostile_name_steers_nothing() -> None:
    finding = found(logits_dominate, with_top(*logits(f"lm_head.{HOSTILE.replace('.0', '')}" + "x" * 500)))
    assert finding.sentence.isprintable()
    assert len(finding.sentence) < 400
    assert "\x1b" not in finding.fix + finding.disprove + "".join(fact.what for fact in finding.evidence)
