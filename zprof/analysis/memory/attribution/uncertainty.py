"""Lower the confidence of attributions where the history leaves room for another owner."""

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import TenantLedger
from zprof.analysis.memory.attribution.census import Census, count_sizes, find_moments
from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.attribution.passes import BACKWARD, OPTIMIZER
from zprof.analysis.memory.attribution.size_copies import MIN_SIZES
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, Bool
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

#: A loss, a norm or a flag has a few bytes, and a parameter rarely.
_SCALAR_BYTES = 64
_SHARDING_ORIGINS = (Origin.GATHER, Origin.REDUCE, Origin.SHARD, Origin.COLLECTIVE)


def lower_confidences(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None, *, is_annotated: bool
) -> None:
    """Lower the confidence of each uncertain block; ``is_annotated``: the program annotated its phases."""
    names = ledger.get_tenants()
    uncertain = np.zeros(len(blocks), dtype=bool)
    if not bool(features.has_stack.any()):
        # passes and lifetimes alone tell the usual case; without annotations, even the passes are a guess
        everything = np.arange(len(blocks), dtype=np.int64)
        ledger.limit(everything, Confidence.MEDIUM if is_annotated else Confidence.LOW)
    temporary = names.tenant == TENANT_CODES[Tenant.TEMPORARY_BUFFERS]
    uncertain |= temporary & _find_possible_gradients(blocks, features, ledger, census)
    uncertain |= temporary & _find_possible_master_gradients(blocks, features, census)
    uncertain |= _find_possible_parameters(blocks, features, census)
    unpaired, lone = _find_unpaired_gradients(blocks, features, ledger, census)
    ledger.limit(np.flatnonzero(unpaired), Confidence.LOW)
    uncertain |= lone
    ledger.limit(np.flatnonzero(uncertain), Confidence.MEDIUM)


def _find_possible_gradients(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None
) -> Bool:
    """Mark blocks of a backward that may be gradients that die in it: reduced to shards, or moved away."""
    made: Bool = features.made_in == BACKWARD
    is_flat = census is None or len(census.gradient_counts) < MIN_SIZES
    if bool(features.made_by(*_SHARDING_ORIGINS).any()) or is_flat:
        return made
    lasts = ledger.get_tenants().tenant == TENANT_CODES[Tenant.PARAMETERS]
    sizes = np.unique(blocks.requested_bytes[lasts | (blocks.before & features.stays)])
    return made & np.isin(blocks.requested_bytes, sizes)


def _find_possible_master_gradients(blocks: HeldBlocks, features: Features, census: Census | None) -> Bool:
    """Mark blocks of a step that is not a library's and that may be gradients in another type."""
    made: Bool = (features.made_in == OPTIMIZER) & ~features.made_by(Origin.OPTIMIZER)
    if census is None:
        return made
    sizes = np.array(list(census.gradient_counts), dtype=np.int64)
    return made & np.isin(blocks.requested_bytes, np.concatenate([sizes, 2 * sizes, sizes // 2]))


def _find_possible_parameters(blocks: HeldBlocks, features: Features, census: Census | None) -> Bool:
    """Mark what a step that is not a library's makes, unless the parameters are seen to stay in place."""
    made: Bool = (features.made_in == OPTIMIZER) & ~features.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_INIT)
    if census is None or bool((blocks.freed_ns[census.parameters] != FOREVER).any()):
        return made
    return made & (features.under_way < census.moment.pass_index)


def _find_unpaired_gradients(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None
) -> tuple[Bool, Bool]:
    """Mark gradients of which there are more than parameters of that size, and lone ones.

    A backward may leave other blocks than gradients. A lone block without a stack that stays may be a
    workspace, and what looks like its parameter another.
    """
    names = ledger.get_tenants()
    parameters = {} if census is None else count_sizes(blocks, census.parameters)
    unpaired, lone = np.zeros(len(blocks), dtype=bool), np.zeros(len(blocks), dtype=bool)
    is_gradient = (names.tenant == TENANT_CODES[Tenant.GRADIENTS]) & (features.made_in == BACKWARD)
    rows = np.flatnonzero(is_gradient)
    first = find_moments(features).find_first(blocks, rows)
    key = np.stack([first, blocks.requested_bytes[rows]], axis=1)
    groups, group, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    expected = np.array([parameters.get(size, 0) for size in groups[:, 1].tolist()], dtype=np.int64)
    group = group.reshape(-1)
    unpaired[rows] = (counts > expected)[group]
    lone[rows] = blocks.requested_bytes[rows] < _SCALAR_BYTES
    if len(groups) and len(np.unique(groups[:, 1])) < MIN_SIZES:
        lone[rows] = True  # so few may have the size of a parameter by chance
        return unpaired, lone
    lone[rows] |= (counts == 1)[group] & features.stays[rows] & ~features.has_stack[rows]
    return unpaired, lone
