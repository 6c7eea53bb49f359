"""Hand-made memory leaves with a known truth, and hostile names."""

from zprof.model.memory import Allocation, FormulaCheck, Memory, RankMemory, StateFormula
from zprof.model.tenants import Tenant

MIB = 1 << 20
#: ESC repaints, a line break forges a line, an override turns text around, a zero-width joiner hides.
HOSTILE = "blocks.0\x1b[2J\x1b]0;owned\x07\nOK 1 ms a step\r\u202egnp.exe\u200d\u2028"


def memory_of(stage: int, *, ranks: int = 2, parameters: int = 6 << 20, module: str = "") -> Memory:
    """Memory of an fp32 AdamW run of a stage, four bytes an element and 256 bytes padding."""
    entries = tuple(_rank(stage, rank, ranks, parameters) for rank in range(ranks))
    top = (
        Allocation(rank=0, bytes=6 * MIB, tenant="activations", sub="saved", module=module or "blocks.3.mlp"),
        Allocation(
            rank=1, bytes=4 * MIB, tenant="communication_buffers", sub="gathered_param", module="blocks.4"
        ),
    )
    checks = tuple(formula for entry in entries for formula in _check_formulas(entry))
    return Memory(per_rank=entries, top=top, formulas=checks, laws=checks)


def _check_formulas(rank: RankMemory) -> tuple[FormulaCheck, ...]:
    assert rank.formula is not None
    assert rank.state_bytes is not None
    return tuple(
        FormulaCheck(
            rank=rank.rank,
            tenant=tenant,
            formula_bytes=formula,
            law_bytes=formula,
            measured_bytes=rank.state_bytes[tenant],
            padding_bytes=rank.state_bytes[tenant] - formula - extra,
            scalar_bytes=extra,
            unexplained_bytes=0,
            cause="padding of shards to equal size",
        )
        for tenant, formula, extra in (
            (Tenant.PARAMETERS, rank.formula.parameters, 0),
            (Tenant.GRADIENTS, rank.formula.gradients, 0),
            (Tenant.OPTIMIZER_STATE, rank.formula.optimizer_state, 24),
        )
    )


def _rank(stage: int, rank: int, ranks: int, parameters: int) -> RankMemory:
    full = 4 * parameters
    formula = StateFormula(
        parameters=full // ranks if stage == 3 else full,
        gradients=full // ranks if stage >= 2 else full,
        optimizer_state=2 * full // ranks if stage >= 1 else 2 * full,
        padding_bytes=256,
        scalar_bytes=24,
    )
    states = {
        Tenant.PARAMETERS: formula.parameters + 64,
        Tenant.GRADIENTS: formula.gradients + 64,
        Tenant.OPTIMIZER_STATE: formula.optimizer_state + 128 + 24,
    }
    tenants = states | {
        Tenant.ACTIVATIONS: 24 * MIB,
        Tenant.TEMPORARY_BUFFERS: 2 * MIB + rank * 1024,
        Tenant.COMMUNICATION_BUFFERS: 8 * MIB if stage == 3 else 4 * MIB,
    }
    return RankMemory(
        rank=rank,
        device="cpu",
        peak_bytes=sum(tenants.values()) + 4096,
        peak_step=3,
        peak_phase="backward",
        tenants=tenants,
        untagged_bytes=4096,
        reserved_unused_bytes=None,
        non_pytorch_bytes=None,
        formula=formula,
        state_bytes=states,
        method="allocator events",
    )
