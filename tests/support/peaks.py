"""Hand-made memory of one run for the rules: healthy by default, one thing wrong where a test says so."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tests.support.rule_runs import run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import (
    Allocation,
    Basis,
    DeviceMemory,
    Memory,
    MemoryPart,
    ModulePeak,
    PhasePeak,
    RankMemory,
)
from zprof.model.tenants import Tenant
from zprof.model.time import Time
from zprof.model.training import TrainingFacts

MIB = 1 << 20
GIB = 1 << 30
PSI = 8 * MIB
#: fp32, AdamW, 8 Mi parameters in eight blocks: 32 MiB of them, 4 MiB a unit.
FACTS = TrainingFacts(
    engine="fsdp2",
    stage=3,
    parameters=PSI,
    shard_ranks=4,
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_state_bytes=8,
    communication_bytes=4,
)
BLOCKS = tuple(f"layers.{index}.mlp" for index in range(8))


def tenants(
    parameters: float = 8,
    gradients: float = 4,
    optimizer: float = 16,
    activations: float = 20,
    temporary: float = 2,
    buffers: float = 16,
) -> dict[Tenant, int]:
    """MiB of each, as bytes; the defaults are a healthy stage 3 over four ranks."""
    sizes = (parameters, gradients, optimizer, activations, temporary, buffers)
    order = (
        Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE, Tenant.ACTIVATIONS,
        Tenant.TEMPORARY_BUFFERS, Tenant.COMMUNICATION_BUFFERS,
    )  # fmt: skip
    return {tenant: round(size * MIB) for tenant, size in zip(order, sizes, strict=True)}


def part(tenant: Tenant, sub: str, mib: float, basis: Basis = Basis.TAGGED) -> MemoryPart:
    """One kind of bytes of a tenant."""
    return MemoryPart(tenant=tenant.value, sub=sub, bytes=round(mib * MIB), basis=basis)


def rank_memory(held: Mapping[Tenant, int], *, rank: int = 0, device: str = "cpu") -> RankMemory:
    """A rank whose peak is in the backward, all tagged, its states those of the ZeRO formula in stage 3."""
    peak = sum(held.values())
    return RankMemory(
        rank=rank,
        device=device,
        peak_bytes=peak,
        peak_step=2,
        peak_phase="backward",
        tenants=held,
        untagged_bytes=0,
        reserved_unused_bytes=None,
        non_pytorch_bytes=None,
        formula=None,
        state_bytes={
            Tenant.PARAMETERS: 8 * MIB,
            Tenant.GRADIENTS: 8 * MIB,
            Tenant.OPTIMIZER_STATE: 16 * MIB,
        },
        basis_bytes={Basis.TAGGED: peak},
    )


def phase(name: str, held: Mapping[Tenant, int], *, rank: int = 0) -> PhasePeak:
    """The highest point of a phase."""
    return PhasePeak(
        rank=rank, phase=name, step=2, peak_bytes=sum(held.values()), tenants=held, untagged_bytes=0
    )


def allocation(mib: float, tenant: Tenant, module: str, sub: str = "saved", rank: int = 0) -> Allocation:
    """One of the largest allocations."""
    return Allocation(rank=rank, bytes=round(mib * MIB), tenant=tenant.value, sub=sub, module=module)


def phases_of(held: Mapping[Tenant, int]) -> tuple[PhasePeak, ...]:
    """A forward without gradients, the backward, an optimizer with no activations and no buffers."""
    return (
        phase("forward", {**held, Tenant.GRADIENTS: 0}),
        phase("backward", held),
        phase(
            "optimizer", {**held, Tenant.ACTIVATIONS: 0, Tenant.COMMUNICATION_BUFFERS: 0}
        ),
    )  # fmt: skip


def memory_run(
    held: Mapping[Tenant, int] | None = None,
    *,
    facts: TrainingFacts = FACTS,
    ranks: int = 4,
    device: str = "cpu",
    modules: Sequence[str] = BLOCKS,
    **leaves: object,
) -> RunAnalysis:
    """A run of which only the memory is known; ``leaves`` replace those of the memory."""
    held = tenants() if held is None else held
    base = run_of(ranks=ranks, steps=2)
    memory = Memory(
        per_rank=tuple(rank_memory(held, rank=rank, device=device) for rank in range(ranks)),
        phases=phases_of(held),
        modules=tuple(
            ModulePeak(rank=0, module=name, peak_bytes=MIB, at_rank_peak_bytes=MIB) for name in modules
        ),
    )
    return replace(
        base,
        run=replace(
            base.run, device=device, engine=facts.engine, stage=facts.stage, steps=(), memory_steps=(2, 3)
        ),
        training=facts,
        memory=replace(memory, **leaves),  # type: ignore[arg-type]
        time=Time(),
        volume=None,
        steps=base.steps.at(slice(0)),
        collectives=base.collectives.at(slice(0)),
    )


def with_rank(analysis: RunAnalysis, **fields: object) -> RunAnalysis:
    """The same run with fields of every rank's memory changed."""
    per_rank = tuple(replace(entry, **fields) for entry in analysis.memory.per_rank)  # type: ignore[arg-type]
    return replace(analysis, memory=replace(analysis.memory, per_rank=per_rank))


def gpu(held: Mapping[Tenant, int] | None = None, **terms: int | None) -> RunAnalysis:
    """The run on a GPU, with one look at its device at the reserved peak."""
    analysis = memory_run(held, device="cuda:0")
    live = analysis.memory.per_rank[0].peak_bytes
    look = DeviceMemory(
        rank=0, device="cuda:0", moment="reserved peak", live_bytes=live,
        tenants=analysis.memory.per_rank[0].tenants, **terms,  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(analysis, memory=replace(analysis.memory, devices=(look,)))
