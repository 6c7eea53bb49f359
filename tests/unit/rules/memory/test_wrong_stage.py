"""wrong_stage: measured against a lower stage, or judged by the ZeRO formula; other work is no comparison."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, gpu, memory_run, part, phase, tenants, with_rank
from tests.support.rule_runs import GAP, Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.rules.memory.wrong_stage import wrong_stage

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
GATHERED = Tenant.COMMUNICATION_BUFFERS
NOTHING = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "temporary", "buffers"), 0)


def stage(
    number: int | None, *, ranks: int = 4, facts: dict[str, int] | None = None, **held: float
) -> RunAnalysis:
    """50 MiB beside the buffers, unless other sizes are stated."""
    return memory_run(tenants(**held), facts=replace(FACTS, stage=number, **(facts or {})), ranks=ranks)


def one_byte_less() -> RunAnalysis:
    held = tenants(buffers=48)
    held[GATHERED] -= 1
    return memory_run(held)


def past_its_activations(*, seen: bool) -> RunAnalysis:
    """At its peak stage 2 is past its activations, which a phase or a curve may show."""
    late = with_rank(stage(2, buffers=2), tenants=tenants(activations=0, buffers=22))
    phases = (phase("forward", tenants(activations=8, buffers=2)),)
    curve = MemoryTimeline(rank=0, device="cpu", time_ns=(0, 5), tenants={"activations": (0, 20 * MIB)})
    timelines = (curve,) if seen else ()
    return replace(late, memory=replace(late.memory, phases=phases, timelines=timelines))


@pytest.mark.parametrize(
    ("run", "baseline", "expected"),
    [
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=20), HIGH),
        (lambda: stage(3, buffers=48), lambda: stage(2, buffers=50), HIGH),  # 2 % below 100 MiB
        (one_byte_less, lambda: stage(2, buffers=50), None),
        (lambda: stage(2, buffers=30), lambda: stage(3), None),  # higher is what stage 2 costs
        # other work
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=2, facts={"parameters": 9_000_000}), None),
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=2, facts={"micro_batches": 4}), None),
        (lambda: stage(3, buffers=30, activations=25), lambda: stage(2, buffers=2), HIGH),
        (lambda: stage(3, buffers=30, activations=26), lambda: stage(2, buffers=2), None),
        (lambda: stage(3), lambda: stage(2, buffers=2, ranks=2), None),
        (lambda: stage(3), lambda: past_its_activations(seen=False), None),
        (lambda: stage(3), lambda: past_its_activations(seen=True), HIGH),
        # what cannot be compared is judged by the formula
        (lambda: gathered(25, buffers=26), lambda: stage(2, buffers=60), None),
        (lambda: gathered(25, buffers=26), lambda: stage(2, buffers=60, ranks=2), LOW),
        (lambda: gathered(25, buffers=26), lambda: stage(0, buffers=60), LOW),
    ],
)
def test_against_a_baseline(
    run: Callable[[], RunAnalysis], baseline: Callable[[], RunAnalysis], expected: Answer
) -> None:
    assert judged(wrong_stage, run(), baseline()) == expected


def gathered(mib: float, *, ranks: int = 4, **held: float) -> RunAnalysis:
    """Stage 3 frees three quarters of 32 MiB."""
    run = stage(3, ranks=ranks, facts={"shard_ranks": ranks}, **held)
    return with_rank(run, parts=(part(GATHERED, "gathered_param", mib),))


def with_room(total_mib: float) -> RunAnalysis:
    """546 MiB, and 24 more in stage 2, on a device of this size."""
    return with_rank(gpu(tenants(activations=500), device_total_bytes=int(total_mib * MIB)), parts=())


def frozen(parameters: float) -> RunAnalysis:
    """Parameters without gradients, beside 42 MiB."""
    return stage(2, parameters=parameters, gradients=0, optimizer=4, activations=20, buffers=16)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: gathered(23.9, buffers=26), None),  # units eat up what is freed
        (lambda: gathered(24, buffers=26), LOW),
        (lambda: gathered(17, buffers=26, ranks=2), LOW),
        (lambda: gathered(4, activations=434), None),  # a twentieth of 480 MiB
        (lambda: gathered(4, activations=435), LOW),
        (lambda: gathered(24, **NOTHING | {"parameters": 1.0}), LOW),  # a mebibyte
        (lambda: gathered(24, **NOTHING | {"parameters": 0.99}), None),
        (lambda: with_room(712.5), MEDIUM),  # four fifths of the device
        (lambda: with_room(712), LOW),
        (lambda: frozen(41), None),  # half of the peak needs stage 3
        (lambda: frozen(42), MEDIUM),
        *((lambda number=number: stage(number), None) for number in range(4)),
        (lambda: stage(None), GAP),
        (lambda: stage(3, ranks=1), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_by_the_formula(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(wrong_stage, run()) == expected


def test_a_lower_stage_frees_the_difference() -> None:
    finding = found(wrong_stage, stage(3, buffers=30), stage(2, buffers=20))
    assert (finding.id, finding.saving_bytes) == ("ZP206", (10 * MIB, 10 * MIB))


def test_without_the_size_of_an_element_it_is_not_tested() -> None:
    sizes = dict.fromkeys(("communication_bytes", "parameter_bytes", "gradient_bytes"))
    assert judged(wrong_stage, memory_run(facts=replace(FACTS, **sizes))) == GAP
