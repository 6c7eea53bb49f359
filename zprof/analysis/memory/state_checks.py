"""Define a rank's memory result, measure its model states, and check them against the ZeRO formula.

A cause is listed only if it predicts the measured bytes to within 1 %. If two causes fit, both are listed; if
none fits, the difference is "not explained".
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.facts import read_declared_engine
from zprof.analysis.memory.live_bytes import RankLives
from zprof.analysis.memory.tables import Int
from zprof.analysis.zero_formulas import TenantFormula, compute_tenant_formulas
from zprof.model.endings import OutOfMemory
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import (
    NOT_EXPLAINED,
    Allocation,
    AllocatorCounters,
    DeviceMemory,
    FormulaCheck,
    HistoryWindow,
    MemoryTimeline,
    ModulePeak,
    PeakGrowth,
    PhasePeak,
    RankMemory,
    StackTree,
)
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, TrainingFacts

PADDING = "padding of shards to equal size"
COUNTERS = "4-byte step counters of the optimizer"
_TOLERANCE = 0.01
#: Explanation by (bytes per element in the formula, bytes per element measured).
_SIZE_CAUSES: dict[Tenant, dict[tuple[int, int], str]] = {
    Tenant.PARAMETERS: {
        (2, 4): "parameters are kept in fp32, the formula assumes 2 bytes per element",
        (4, 2): "parameters are kept in 2 bytes per element, the formula assumes 4",
        (2, 6): "bf16 parameters with fp32 master weights: 6 bytes per element, the formula assumes 2",
        (4, 6): "fp32 parameters with a copy in 2 bytes per element",
    },
    Tenant.GRADIENTS: {
        (2, 4): "gradients are reduced and kept in fp32: 4 bytes per element, the formula assumes 2",
        (4, 2): "gradients are kept in 2 bytes per element, the formula assumes 4",
        (2, 6): "gradients in 2 bytes per element and their fp32 sums",
    },
    Tenant.OPTIMIZER_STATE: {
        (
            8,
            12,
        ): "fp32 master weights in addition to the moments: 12 bytes per element, the formula assumes 8",
        (12, 8): "no fp32 master weights: 8 bytes per element, the formula assumes 12",
        (8, 4): "moments of 2 bytes, or one moment of 4: 4 bytes per element, the formula assumes 8",
        (12, 4): "4 bytes per element (only master weights, or only one moment), the formula assumes 12",
        (8, 2): "moments of 1 byte: 2 bytes per element, the formula assumes 8",
        (12, 6): "master weights with moments of 1 byte: 6 bytes per element, the formula assumes 12",
    },
}
_COPY_CAUSES = {
    Tenant.PARAMETERS: "twice the formula: parameters and a full copy",
    Tenant.GRADIENTS: "twice the formula: gradients and a full copy",
    Tenant.OPTIMIZER_STATE: "twice the formula: the state and a full copy",
}
_STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
#: Relative to the formula; a larger excess is not padding.
_MAX_PADDING_RATIO = 0.1
_UNEVEN = "shards of unequal size: the sum over all ranks matches the formula"
#: Maximum bytes of a scalar tensor.
_MAX_SCALAR_BYTES = 8


class StateDifference(Struct, frozen=True, kw_only=True):
    """One model state of one rank: formula bytes, known additions, and measured bytes.

    ``ranks``: size of the sharding group; ``sharded``: the formula divides this state among its ranks.
    ``buffer_bytes``: the model's buffers. ``rounding_bytes``: excess of the allocator's blocks over their
    tensors. ``excess_elements``: elements above the formula, if another state of the rank has the same
    excess; else None. ``keeps_boundary``: the engine keeps the full gradient of a parameter that spans two
    ranks' shards.
    """

    tenant: Tenant
    formula_bytes: int
    padding_bytes: int
    scalar_bytes: int
    measured_bytes: int
    element_bytes: int
    ranks: int
    sharded: bool
    buffer_bytes: int = 0
    rounding_bytes: int = 0
    excess_elements: int | None = None
    keeps_boundary: bool = False

    @property
    def unexplained_bytes(self) -> int:
        """Bytes not explained by the formula, padding or step counters."""
        return self.measured_bytes - self.formula_bytes - self.padding_bytes - self.scalar_bytes


def explain_difference(difference: StateDifference) -> str:
    """Return the causes of the difference; empty if the measured bytes equal the formula."""
    if difference.unexplained_bytes == 0:
        stated = ((difference.padding_bytes, PADDING), (difference.scalar_bytes, COUNTERS))
        return " and ".join(name for size, name in stated if size)
    return (
        ", or ".join(dict.fromkeys([*_find_causes_by_bytes(difference), *_find_causes_by_ratio(difference)]))
        or NOT_EXPLAINED
    )


def _find_causes_by_bytes(state: StateDifference) -> Iterator[str]:
    """Yield causes that predict the difference in bytes."""
    rest = state.unexplained_bytes
    if state.measured_bytes == 0:
        yield (
            "none was live when the optimizer started: the program frees or reduces gradients earlier"
            if state.tenant is Tenant.GRADIENTS
            else "none was seen: the recorder does not know the owner of these bytes"
        )
    if state.rounding_bytes > 0 and _is_near(rest, state.rounding_bytes):
        yield "the allocator's blocks are larger than the tensors in them"
    if state.keeps_boundary and 0 < rest <= _MAX_PADDING_RATIO * state.formula_bytes:
        yield "parameters on the boundary of two ranks' shards keep their whole gradient"
    if state.buffer_bytes > 0 and _is_near(rest, -state.buffer_bytes):
        yield "the model's buffers are not counted"
    if state.excess_elements and state.sharded and rest == state.excess_elements * state.element_bytes:
        yield f"{PADDING}: {state.excess_elements} elements in each state"


def _find_causes_by_ratio(state: StateDifference) -> Iterator[str]:
    """Yield causes that scale the formula by a factor."""
    base = state.formula_bytes + state.padding_bytes
    times = (state.measured_bytes - state.scalar_bytes) / base if base else 0.0
    if state.ranks > 1 and state.sharded and _is_near(times, state.ranks):
        yield (
            f"equals {state.ranks} x the formula: the state is replicated on {state.ranks} ranks, not sharded"
        )
    if state.ranks > 1 and not state.sharded and _is_near(times, 1 / state.ranks):
        yield f"equals the formula / {state.ranks}: the state is sharded over {state.ranks} ranks"
    known = _SIZE_CAUSES[state.tenant].items()
    sizes = [
        text
        for (expected, measured), text in known
        if expected == state.element_bytes and _is_near(times, measured / expected)
    ]
    yield from sizes
    if _is_near(times, 2) and not sizes:
        yield _COPY_CAUSES[state.tenant]


def _is_near(value: float, expected: float) -> bool:
    return abs(value - expected) <= _TOLERANCE * abs(expected)


class MeasuredStates(Struct, frozen=True, kw_only=True):
    """One rank's model states, each at the time it is complete, and data to explain them.

    ``counter_bytes``: optimizer state in scalar tensors. ``buffer_bytes``: the model's buffers, which belong
    to no state. ``rounding_bytes``: bytes that the allocator added to the tensors.
    """

    rank: int
    bytes: Mapping[Tenant, int]
    counter_bytes: int = 0
    buffer_bytes: int = 0
    rounding_bytes: Mapping[Tenant, int] = field(default_factory=dict)


def check_formulas(facts: TrainingFacts, measured: Sequence[MeasuredStates]) -> tuple[FormulaCheck, ...]:
    """Return one check per rank and state with a known formula, in rank order."""
    formulas = compute_tenant_formulas(facts)
    # the partitions of these stages cut through parameters
    keeps_boundary = read_declared_engine(facts) is Engine.DEEPSPEED and facts.stage in (1, 2)
    checks = [
        FormulaCheck(
            rank=states.rank,
            tenant=state.tenant,
            formula_bytes=state.formula_bytes,
            law_bytes=state.formula_bytes,
            measured_bytes=state.measured_bytes,
            padding_bytes=state.padding_bytes,
            scalar_bytes=state.scalar_bytes,
            unexplained_bytes=state.unexplained_bytes,
            cause=explain_difference(state),
        )
        for states in measured
        for state in _compare_states(formulas, states, keeps_boundary)
    ]
    replicas = facts.replica_ranks or 1
    uneven_shards = _find_uneven_shards(formulas, checks, replicas)
    counters = {states.rank: states.counter_bytes for states in measured}
    checks_with_counters = [_add_counters(check, counters[check.rank]) for check in checks]
    uneven_with_counters = _find_uneven_shards(formulas, checks_with_counters, replicas)
    return tuple(
        uneven_shards.get(key) or uneven_with_counters.get(key) or check for key, check in enumerate(checks)
    )


def find_formula_gaps(facts: TrainingFacts, measured: Sequence[MeasuredStates]) -> tuple[Gap, ...]:
    """Report states whose formula could not be computed, with the missing fact."""
    formulas = compute_tenant_formulas(facts)
    missing = [tenant for tenant in _STATES if tenant not in formulas]
    if not measured or not missing:
        return ()
    if facts.stage is None:
        key = "no_formula_without_stage"
    elif facts.parameters is None:
        key = "no_formula_without_parameters"
    else:
        key = "no_formula" if facts.shard_ranks else "no_formula_without_ranks"
    return (make_gap(key, states=[tenant.value.replace("_", " ") for tenant in missing]),)


def _compare_states(
    formulas: Mapping[Tenant, TenantFormula], states: MeasuredStates, keeps_boundary: bool
) -> list[StateDifference]:
    differences: dict[Tenant, StateDifference] = {}
    for tenant in _STATES:
        formula = formulas.get(tenant)
        if formula is None or tenant not in states.bytes:
            continue
        counters = states.counter_bytes if tenant is Tenant.OPTIMIZER_STATE else 0
        differences[tenant] = StateDifference(
            tenant=tenant,
            formula_bytes=formula.formula_bytes,
            padding_bytes=formula.padding_bytes,
            scalar_bytes=formula.scalar_bytes or counters,
            measured_bytes=states.bytes[tenant],
            element_bytes=formula.element_bytes,
            ranks=formula.ranks,
            sharded=formula.sharded,
            buffer_bytes=states.buffer_bytes,
            rounding_bytes=states.rounding_bytes.get(tenant, 0),
            keeps_boundary=keeps_boundary and tenant is Tenant.GRADIENTS,
        )
    excess = {tenant: _find_excess_elements(difference) for tenant, difference in differences.items()}
    return [
        replace(difference, excess_elements=_confirm_excess(excess, tenant))
        for tenant, difference in differences.items()
    ]


def _find_excess_elements(state: StateDifference) -> int | None:
    """Return the number of elements above the formula if it is small enough to be padding, else None."""
    rest = state.unexplained_bytes
    may_be_padding = 0 < rest <= _MAX_PADDING_RATIO * state.formula_bytes
    return rest // state.element_bytes if may_be_padding and rest % state.element_bytes == 0 else None


def _confirm_excess(excess: Mapping[Tenant, int | None], tenant: Tenant) -> int | None:
    """Return a state's excess if another state has the same excess, because padding is equal in all
    states.
    """
    own_excess = excess[tenant]
    others = [size for other, size in excess.items() if other is not tenant]
    return own_excess if own_excess in others else None


def _find_uneven_shards(
    formulas: Mapping[Tenant, TenantFormula], checks: Sequence[FormulaCheck], replicas: int
) -> dict[int, FormulaCheck]:
    """Return the checks, by index, of sharded states that are uneven but sum to the formula.

    An engine may pad only some states (FSDP2 pads shards, but not the optimizer state), so the sum may also
    match without the padding. A rank's shard is rounded up to a byte, so the shards may exceed the total by
    up to a byte per rank.
    """
    uneven_checks: dict[int, FormulaCheck] = {}
    for tenant, formula in formulas.items():
        tenant_checks = {index: check for index, check in enumerate(checks) if check.tenant is tenant}
        ranks = formula.ranks * replicas
        if not formula.sharded or len(tenant_checks) != ranks:
            continue
        without_padding = {
            index: replace(
                check, padding_bytes=0, unexplained_bytes=check.unexplained_bytes + check.padding_bytes
            )
            for index, check in tenant_checks.items()
        }
        for candidates in (tenant_checks, without_padding):
            rests = [check.unexplained_bytes for check in candidates.values()]
            if any(rests) and abs(sum(rests)) < ranks:
                uneven = {index: replace(check, cause=_UNEVEN) for index, check in candidates.items()}
                uneven_checks.update(
                    {index: check for index, check in uneven.items() if check.unexplained_bytes}
                )
                break
    return uneven_checks


def _add_counters(check: FormulaCheck, counter_bytes: int) -> FormulaCheck:
    """Add this rank's step counters to the check.

    The recorded number is one rank's; it differs between ranks if unsharded parameters are distributed.
    """
    if check.tenant is not Tenant.OPTIMIZER_STATE or not counter_bytes:
        return check
    rest = check.unexplained_bytes + check.scalar_bytes - counter_bytes
    return replace(check, scalar_bytes=counter_bytes, unexplained_bytes=rest)


def measure_states(rank: int, lives: RankLives) -> tuple[MeasuredStates, ...]:
    """Return a rank's model states as one entry; empty if no step ended."""
    moments, sizes = lives.find_state_moments(), lives.states()
    if sizes is None:
        return ()
    # the largest tensor storage in each block
    tensor_bytes = np.zeros(len(lives.blocks), dtype=np.int64)
    np.maximum.at(tensor_bytes, lives.blocks.owner, lives.storages.bytes)
    rows = {tenant: lives.find_state_rows(tenant, moment) for tenant, moment in moments.items()}
    state_bytes = tensor_bytes[lives.segments.block[rows[Tenant.OPTIMIZER_STATE]]]
    buffers = lives.find_state_rows(Tenant.PARAMETERS, moments[Tenant.PARAMETERS], buffers=True)
    return (
        MeasuredStates(
            rank=rank,
            bytes=sizes,
            counter_bytes=int(state_bytes[state_bytes <= _MAX_SCALAR_BYTES].sum()),
            buffer_bytes=int(lives.segments.bytes[buffers].sum()),
            rounding_bytes={
                tenant: _sum_rounding_bytes(lives, find_state_rows, tensor_bytes)
                for tenant, find_state_rows in rows.items()
            },
        ),
    )


def _sum_rounding_bytes(lives: RankLives, rows: Int, tensor_bytes: Int) -> int:
    """Return the excess of blocks over their tensors; on a GPU, a step counter takes 512 bytes."""
    size, block = tensor_bytes[lives.segments.block[rows]], lives.segments.bytes[rows]
    return int((block - size)[(size > 0) & (size < block)].sum())


class RankMemoryResult(Struct, frozen=True, kw_only=True):
    """One rank's leaves, from a live recording or a snapshot.

    ``per_rank``, ``states`` and ``timelines`` have at most one entry, for the rank's own device. Formulas are
    checked, and the timelines to show are chosen, once all ranks are available.
    """

    per_rank: tuple[RankMemory, ...] = ()
    top: tuple[Allocation, ...] = ()
    phases: tuple[PhasePeak, ...] = ()
    modules: tuple[ModulePeak, ...] = ()
    states: tuple[MeasuredStates, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    counters: tuple[AllocatorCounters, ...] = ()
    host: tuple[RankMemory, ...] = ()
    init: tuple[RankMemory, ...] = ()
    timelines: tuple[MemoryTimeline, ...] = ()
    stacks: tuple[StackTree, ...] = ()
    windows: tuple[HistoryWindow, ...] = ()
    growth: tuple[PeakGrowth, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
    gaps: tuple[Gap, ...] = ()
