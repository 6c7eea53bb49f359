"""replicated_state and wrong_stage: states on all ranks, and stages that save no memory."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import FACTS, MIB, gpu, memory_run, part, phase, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.replicated_state import CAUSE as replicated_state
from zprof.causes.wrong_stage import CAUSE as wrong_stage
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

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


def stage_with_states(number: int, psi: int | None = FACTS.parameters, **mib: float) -> RunAnalysis:
    """A run of ``psi`` parameters."""
    facts = replace(FACTS, stage=number, parameters=psi)
    return with_states(memory_run(tenants(32, 32, 64, 10, 0, 0), facts=facts), **mib)


def beside_little(optimizer: float) -> RunAnalysis:
    """Three quarters of 8 MiB are 6 of 120."""
    return with_states(memory_run(tenants(10, 10, 20, 70, 5, 5), facts=DDP), optimizer_state=optimizer)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: replicated(32), "medium"),  # four fifths of the peak
        (lambda: on_device(276), "medium"),  # half of the device is room
        (lambda: with_odd_rank(48, parameters=25, gradients=25, optimizer_state=50), "low"),  # within 2 %
        (lambda: with_odd_rank(47.9, parameters=25, gradients=25, optimizer_state=50), None),
        (lambda: beside_little(7.9), None),
        # against the stage_with_states: nine tenths of the whole
        (lambda: stage_with_states(2, **WHOLE), "high"),
        (lambda: stage_with_states(1, 10 * MIB, optimizer_state=71.9), None),
        # the formula of each stage_with_states
        (lambda: stage_with_states(1, parameters=32, gradients=32, optimizer_state=16), None),
        (lambda: stage_with_states(2, parameters=32, gradients=8, optimizer_state=16), None),
        (lambda: stage_with_states(3, parameters=8, gradients=8, optimizer_state=16), None),
        (lambda: memory_run(facts=replace(FACTS, stage=None)), "gap"),
        (lambda: memory_run(facts=replace(FACTS, parameters=None)), "gap"),
        (lambda: with_rank(replicated(), state_bytes=None), "gap"),
        (lambda: replicated(ranks=1), None),
        (lambda: replicated(facts=replace(DDP, model_parallel_ranks=4)), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_replicated_state(run: Run, expected: str | None) -> None:
    assert judged(replicated_state, run()) == expected


@pytest.mark.parametrize(
    ("run", "saving_mib"),
    [
        (
            replicated,
            (64, 96),
        ),  # three quarters, less the eight units of 4 MiB that stage_with_states 3 needs
        (lambda: replicated(ranks=2), (32, 64)),
        (lambda: with_odd_rank(None), (64, 96)),  # a rank whose states nobody knows excuses no other
        (lambda: stage_with_states(2, **WHOLE), (36, 72)),  # 96 MiB where 24 are its share
    ],
)
def test_sharding_frees(run: Run, saving_mib: tuple[int, int]) -> None:
    finding = found(replicated_state, run())
    assert (finding.id, finding.saving_bytes) == ("ZP205", tuple(mib * MIB for mib in saving_mib))


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
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=20), "high"),
        (one_byte_less, lambda: stage(2, buffers=50), None),
        (lambda: stage(2, buffers=30), lambda: stage(3), None),  # higher is what stage 2 costs
        # other work
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=2, facts={"parameters": 9_000_000}), None),
        (lambda: stage(3, buffers=30), lambda: stage(2, buffers=2, facts={"micro_batches": 4}), None),
        (lambda: stage(3, buffers=30, activations=26), lambda: stage(2, buffers=2), None),
        (lambda: stage(3), lambda: stage(2, buffers=2, ranks=2), None),
        (lambda: stage(3), lambda: past_its_activations(seen=False), None),
        (lambda: stage(3), lambda: past_its_activations(seen=True), "high"),
        # what cannot be compared is judged by the formula
        (lambda: gathered(25, buffers=26), lambda: stage(2, buffers=60), None),
        (lambda: gathered(25, buffers=26), lambda: stage(2, buffers=60, ranks=2), "low"),
        (lambda: gathered(25, buffers=26), lambda: stage(0, buffers=60), "low"),
    ],
)
def test_against_a_baseline(run: Run, baseline: Run, expected: str | None) -> None:
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
        (lambda: gathered(17, buffers=26, ranks=2), "low"),
        (lambda: gathered(4, activations=435), "low"),
        (lambda: gathered(24, **NOTHING | {"parameters": 0.99}), None),
        (lambda: with_room(712.5), "medium"),  # four fifths of the device
        (lambda: frozen(42), "medium"),
        *((lambda number=number: stage(number), None) for number in range(4)),
        (lambda: stage(None), "gap"),
        (lambda: stage(3, ranks=1), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_by_the_formula(run: Run, expected: str | None) -> None:
    assert judged(wrong_stage, run()) == expected


def test_a_lower_stage_frees_the_difference() -> None:
    finding = found(wrong_stage, stage(3, buffers=30), stage(2, buffers=20))
    assert (finding.id, finding.saving_bytes) == ("ZP206", (10 * MIB, 10 * MIB))


def test_without_the_size_of_an_element_it_is_not_tested() -> None:
    sizes = dict.fromkeys(("communication_bytes", "parameter_bytes", "gradient_bytes"))
    assert judged(wrong_stage, memory_run(facts=replace(FACTS, **sizes))) == "gap"
