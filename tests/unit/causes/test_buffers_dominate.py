"""buffers_dominate: more than six units of buffers; what a sharded step needs is left alone."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import FACTS, MIB, allocation, memory_run, part, phase, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import format_bytes
from zprof.causes.buffers_dominate import CAUSE as buffers_dominate
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

BUFFERS = Tenant.COMMUNICATION_BUFFERS
DDP, UNKNOWN = replace(FACTS, engine="ddp", stage=0), replace(FACTS, parameters=None)
#: Data parallel: buckets beside the gradients.
BUCKETS = tenants(parameters=32, gradients=30, optimizer=64, buffers=32)


def holding(buffers: float, **more: object) -> RunAnalysis:
    """Six units of 4 MiB are allowed, and 50 MiB stand beside the buffers."""
    return memory_run(tenants(buffers=buffers), **more)  # type: ignore[arg-type]


def gathering(mib: float, module: str, buffers: float) -> RunAnalysis:
    return holding(buffers, top=(allocation(mib, BUFFERS, module, sub="gathered_param"),))


def in_parts(buffers: float, **mib: float) -> RunAnalysis:
    rules = {"nccl": Basis.RULE}
    parts = tuple(part(BUFFERS, sub, size, rules.get(sub, Basis.TAGGED)) for sub, size in mib.items())
    return with_rank(holding(buffers), parts=parts)


def saving(run: RunAnalysis, mib: int) -> RunAnalysis:
    """Sharding saves three times as much."""
    return with_rank(
        run, state_bytes={Tenant.PARAMETERS: mib * MIB, Tenant.GRADIENTS: 0, Tenant.OPTIMIZER_STATE: 0}
    )


def share(buffers: float, activations: float, **more: object) -> RunAnalysis:
    return memory_run(tenants(buffers=buffers, activations=activations), **more)  # type: ignore[arg-type]


def ddp(held: dict[Tenant, int], *phases: str) -> RunAnalysis:
    more = {"phases": tuple(phase(name, held) for name in phases)} if phases else {}
    return memory_run(held, facts=DDP, **more)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: holding(28), "medium"),
        (lambda: saving(share(30, 60), 5), "medium"),  # exactly
        (lambda: holding(64.1), "high"),
        # 30 % of the peak; less counts only beyond what sharding saves
        (lambda: share(30, 40), "medium"),
        (lambda: share(40, 64), None),
        (lambda: saving(share(39, 64), 12), "medium"),
        (lambda: share(39, 64, facts=replace(FACTS, stage=0)), None),
        # what the backend allocates is not the program's; what rests on rules is less sure
        (lambda: in_parts(40, backend_scratch=20), None),
        (lambda: in_parts(80, nccl=16, bucket=64), "medium"),
        (lambda: in_parts(80, nccl=80), "low"),
        (lambda: with_rank(holding(80), upper_bound=True), "medium"),
        # an embedding is gathered whole, but half of the model is none
        (lambda: gathering(12, "embedding", 44), None),
        (lambda: gathering(12, "layers.3", 44), "medium"),
        (lambda: gathering(16, "embedding", 58), "medium"),
        # a model without numbered blocks is its own unit
        (lambda: holding(64, modules=("encoder", "head")), None),
        (lambda: holding(240, modules=()), "high"),
        # data parallel: gradients twice, unless they are alive in the forward
        (lambda: ddp(BUCKETS), "medium"),
        (lambda: ddp(BUCKETS, "forward", "backward"), None),
        (lambda: ddp(BUCKETS | {Tenant.GRADIENTS: MIB}), None),
        (lambda: ddp(BUCKETS | {BUFFERS: 0}), None),
        (lambda: holding(80, facts=UNKNOWN), "gap"),
        (lambda: share(30, 40, facts=UNKNOWN), "gap"),
        (lambda: holding(8, facts=UNKNOWN), None),
        (lambda: memory_run({tenant: size // 1000 for tenant, size in tenants(buffers=80).items()}), None),
        (lambda: holding(80, ranks=1), None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(buffers_dominate, run()) == expected


OPTIMIZER = phase("optimizer", tenants(buffers=0, temporary=72))
SMALL_DDP = tenants(parameters=30, gradients=5, optimizer=30, activations=20, temporary=5, buffers=10)


@pytest.mark.parametrize(
    ("run", "saving_mib"),
    [
        (lambda: holding(80), (56, 72)),  # six units may stay, two must
        (lambda: holding(80, phases=(OPTIMIZER,)), (10, 10)),  # another phase is as high
        (lambda: ddp(BUCKETS), (15, 30)),
        (lambda: ddp(SMALL_DDP), (2.5, 5)),
    ],
)
def test_smaller_buffers_free(run: Run, saving_mib: tuple[float, float]) -> None:
    finding = found(buffers_dominate, run())
    assert (finding.id, finding.saving_ns) == ("ZP201", (0, 0))
    assert finding.saving_bytes == tuple(mib * MIB for mib in saving_mib)


def test_tensors_of_the_program_are_not_taken_for_buckets_of_ddp() -> None:
    finding = found(buffers_dominate, ddp(BUCKETS | {BUFFERS: 200 * MIB}))
    assert {fact.key: fact.value for fact in finding.evidence}["ddp_buckets_at_peak"] == 32 * MIB
    assert format_bytes(168 * MIB) in finding.sentence


def test_the_fix_is_for_the_engine() -> None:
    names = {"fsdp2": "fully_shard", "deepspeed": "reduce_bucket_size", "reference": "constant_buffers"}
    for engine in names:
        fix = found(buffers_dominate, holding(80, facts=replace(FACTS, engine=engine))).fix
        named = {of for of, name in names.items() if name in fix}
        assert named == {engine, "fsdp2"} if engine == "reference" else {engine}
    assert "gradient_as_bucket_view" in found(buffers_dominate, ddp(BUCKETS)).fix
