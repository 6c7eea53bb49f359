"""Attribute what lasts beside the parameters: state of the optimizer, buckets, frozen weights, copies."""

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import Attribution, TenantLedger
from zprof.analysis.memory.attribution.census import (
    Census,
    count_sizes,
    find_lasting_blocks,
    find_moments,
    group_by_size,
    group_rows,
    make_size_attribution,
    sum_bytes,
)
from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.attribution.passes import BACKWARD, NONE, OPTIMIZER
from zprof.analysis.memory.attribution.rules import HOPPER_WORKSPACE_BYTES, WORKSPACE_BYTES
from zprof.analysis.memory.attribution.size_copies import (
    MIN_SINGLE_BYTES,
    MIN_SIZES,
    SCALES,
    SizeCounts,
    find_repeated_set,
    fit_copies,
    select_model_sizes,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

_MEDIUM, _LOW = Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS = TENANT_CODES[Tenant.PARAMETERS], TENANT_CODES[Tenant.GRADIENTS]
_STATE = TENANT_CODES[Tenant.OPTIMIZER_STATE]
#: Blocks without gradients are a part of the model only if they hold a share of what has gradients.
_FROZEN_RATIO = 0.01
#: Share of the sizes of a set that one line of code makes if it loops over the parameters.
_LOOP_RATIO = 0.8
#: Gradients of fewer bytes than this share of the buckets are views of the buckets.
_VIEWS_RATIO = 0.5
#: Steps in which that is looked at.
_MAX_JUDGED = 16
_WORKSPACE_SIZES = (WORKSPACE_BYTES, HOPPER_WORKSPACE_BYTES)
#: Copies beside the parameters if the gradients and two moments are among them.
_COPIES_WITH_GRADIENTS = 3
#: A workspace for the forward's thread and one for the backward's.
_MAX_WORKSPACES = 2


def attribute_state(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None
) -> None:
    """Attribute by their sizes, with the parameters of the gradients if those are known."""
    if census is None:
        _name_standing_blocks(blocks, features, ledger)
    else:
        _match_constructed_state(blocks, features, ledger, census)
        # Attribute copies of the gradients that Python code makes between the backward and the optimizer.
        names, moments = ledger.get_tenants(), find_moments(features)
        fresh = np.flatnonzero((names.tenant == UNTAGGED) & (features.made_in == NONE) & ~blocks.before)
        first = moments.find_first(blocks, fresh)
        backward_ns = features.passes.first_ns[np.maximum(moments.pass_index[first] - 1, 0)]
        is_copy = (first >= 0) & (blocks.begin_ns[fresh] > backward_ns)
        copy = make_size_attribution(Tenant.GRADIENTS, "master_grad", _MEDIUM, "sizes_repeat_gradients")
        for rows in group_rows(fresh[is_copy], first[is_copy]).values():
            ledger.assign(_find_copies(blocks, rows, census), copy)
        _match_standing_state(blocks, features, ledger, census)
        _match_workspaces(blocks, features, ledger, census)
    _judge_buckets(blocks, features, ledger)


def _match_constructed_state(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census
) -> None:
    """Attribute state that an optimizer makes when it is built: one line makes a block per parameter."""
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment)
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & ~blocks.before & (features.made_in != OPTIMIZER))
    if _LOOP_RATIO * len(census.gradient_counts) <= 1:
        return  # one block is no loop
    for of_stack in group_rows(rows, blocks.stack[rows]).values():
        if features.has_stack[of_stack[0]]:
            ledger.assign(_find_copies(blocks, of_stack, census), _make_state(_MEDIUM))


def _find_copies(blocks: HeldBlocks, rows: Int, census: Census) -> Int:
    """Return the rows that repeat the sizes of most gradients, in one type or another; none if none do."""
    for numerator, denominator in SCALES:
        wanted = [size * numerator // denominator for size in census.gradient_counts]
        copies = rows[np.isin(blocks.requested_bytes[rows], wanted)]
        if len(count_sizes(blocks, copies)) >= _LOOP_RATIO * len(wanted):
            return copies
    return rows[:0]


def _make_state(confidence: Confidence) -> Attribution:
    return make_size_attribution(Tenant.OPTIMIZER_STATE, "state", confidence, "sizes_repeat_parameters")


def _match_standing_state(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census
) -> None:
    """Attribute the blocks that are older than the history and not parameters of the gradients."""
    names = ledger.get_tenants()
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment) & blocks.before
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & (names.tenant == UNTAGGED))
    fit = fit_copies(count_sizes(blocks, rows), census.gradient_counts)
    rows = _take_sizes(blocks, ledger, rows, fit.counts, _make_state(_MEDIUM))
    held = count_sizes(blocks, rows)
    # some optimizers have moments for some parameters only
    single = {
        size: held[size] for size, count in census.gradient_counts.items() if held[size] in (count, 2 * count)
    }
    rows = _take_sizes(blocks, ledger, rows, single, _make_state(_LOW))
    rows = _take_workspaces(blocks, ledger, rows)
    rows = _match_buckets(blocks, ledger, rows, census)
    rows = rows[blocks.freed_ns[rows] == FOREVER]
    frozen = select_model_sizes(count_sizes(blocks, rows))
    enough_bytes = _FROZEN_RATIO * sum_bytes(census.gradient_counts)
    if len(frozen) >= MIN_SIZES and sum_bytes(frozen) >= enough_bytes:
        attribution = make_size_attribution(Tenant.PARAMETERS, "frozen", _LOW, "lasts_without_gradient")
        _take_sizes(blocks, ledger, rows, frozen, attribution)


def _take_sizes(
    blocks: HeldBlocks, ledger: TenantLedger, rows: Int, counts: SizeCounts, attribution: Attribution
) -> Int:
    """Attribute so many blocks of each size, first those with the fate of most; return the rest."""
    matching = rows[np.isin(blocks.requested_bytes[rows], list(counts) or [-1])]
    sizes, ends = blocks.requested_bytes[matching], blocks.freed_ns[matching]
    most_die = 2 * int(sizes[ends != FOREVER].sum()) > int(sizes.sum())
    taken: list[Int] = []
    for size, of_size in group_by_size(blocks, matching).items():
        count = counts[size]
        dies = blocks.freed_ns[of_size] != FOREVER
        taken.append(of_size[np.lexsort((blocks.address[of_size], dies != most_die))][:count])
    chosen = np.concatenate(taken) if taken else rows[:0]
    ledger.assign(chosen, attribution)
    return np.setdiff1d(rows, chosen)


def _take_workspaces(blocks: HeldBlocks, ledger: TenantLedger, rows: Int) -> Int:
    """Attribute one or two blocks of the size of a workspace; return the rest."""
    for size in _WORKSPACE_SIZES:
        found = rows[blocks.requested_bytes[rows] == size]
        if 0 < len(found) <= _MAX_WORKSPACES:
            ledger.assign(found, _make_workspace(_MEDIUM))
            rows = np.setdiff1d(rows, found)
    return rows


def _make_workspace(confidence: Confidence) -> Attribution:
    return make_size_attribution(Tenant.TEMPORARY_BUFFERS, "workspace", confidence, "size_of_a_workspace")


def _match_workspaces(blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census) -> None:
    """Attribute blocks of a backward without a stack that no parameter explains, and that outlive others."""
    names = ledger.get_tenants()
    paired = list(count_sizes(blocks, census.parameters))
    rows = census.moment.gradients
    rows = rows[~np.isin(blocks.requested_bytes[rows], paired) & (features.made_in[rows] == BACKWARD)]
    rows = rows[(names.tenant[rows] == _GRADIENTS) & ~features.has_stack[rows]]
    last_gradient_ns = blocks.freed_ns[np.setdiff1d(census.moment.gradients, rows)]
    outlives = blocks.freed_ns[rows] > last_gradient_ns.max(initial=0)
    known_size = np.isin(blocks.requested_bytes[rows], _WORKSPACE_SIZES)
    ledger.assign(rows[outlives | known_size], _make_workspace(_MEDIUM))


def _match_buckets(blocks: HeldBlocks, ledger: TenantLedger, rows: Int, census: Census) -> Int:
    """Attribute large blocks that hold all gradients once: the buckets of DDP."""
    large = rows[blocks.requested_bytes[rows] >= MIN_SINGLE_BYTES]
    if len(large) and int(blocks.requested_bytes[large].sum()) == sum_bytes(census.gradient_counts):
        ledger.assign(
            large,
            make_size_attribution(Tenant.COMMUNICATION_BUFFERS, "bucket", _MEDIUM, "sums_to_gradients"),
        )
        return np.setdiff1d(rows, large)
    return rows


def _judge_buckets(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> None:
    """Attribute DDP's buckets as gradients if there are no others: the gradients are views of them."""
    names = ledger.get_tenants()
    is_bucket = features.made_by(Origin.BUCKET) & (names.tenant != UNTAGGED)
    moments = find_moments(features)
    for time_ns in moments.time_ns[:_MAX_JUDGED].tolist() if bool(is_bucket.any()) else ():
        live = (blocks.begin_ns < time_ns) & (blocks.freed_ns > time_ns)
        buckets = int(blocks.requested_bytes[live & is_bucket].sum())
        gradients = int(blocks.requested_bytes[live & (names.tenant == _GRADIENTS)].sum())
        if buckets and gradients < _VIEWS_RATIO * buckets:
            ledger.assign(
                np.flatnonzero(is_bucket),
                Attribution(
                    tenant=Tenant.GRADIENTS,
                    sub="bucket_view",
                    basis=Basis.RULE,
                    confidence=_MEDIUM,
                    reason="buckets_without_gradients",
                ),
            )
            return


def _name_standing_blocks(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> None:
    """Attribute blocks that last through a history without gradients: a model, perhaps with its optimizer."""
    names = ledger.get_tenants()
    standing = blocks.before & features.stays & (names.tenant == UNTAGGED) & (blocks.stack < 0)
    rows = _take_workspaces(blocks, ledger, np.flatnonzero(standing))
    held = select_model_sizes(count_sizes(blocks, rows))
    if len(held) < MIN_SIZES or not len(features.passes):
        return  # a block or two may be anything, and so may memory that no pass uses
    known = np.flatnonzero((names.tenant == _PARAMETERS) & (names.confidence == 0))
    known_counts = count_sizes(blocks, known)
    if sum_bytes(known_counts & count_sizes(blocks, rows)) >= sum_bytes(held) / 2:
        # the parameters are known by their stacks
        has_state = bool(((names.tenant == _STATE) & (names.confidence == 0)).any())
        tenant, sub = (Tenant.GRADIENTS, "grad") if has_state else (Tenant.OPTIMIZER_STATE, "state")
        attribution = make_size_attribution(tenant, sub, _LOW, "sizes_repeat_parameters")
        _take_sizes(blocks, ledger, rows, held, attribution)
        return
    found = find_repeated_set(held)
    trains = bool(np.isin(features.passes.kind, (BACKWARD, OPTIMIZER)).any())
    one_set = make_size_attribution(
        Tenant.PARAMETERS, "weight", _LOW if trains else _MEDIUM, "lasts_in_one_set"
    )
    one_of_several = make_size_attribution(Tenant.PARAMETERS, "weight", _LOW, "lasts_in_copies")
    rest = _take_sizes(blocks, ledger, rows, found.base, one_of_several if found.copies else one_set)
    if found.copies:
        scale = 2 if found.doubled else 1
        # of four equal copies, one is the gradients'
        has_gradients = found.copies == _COPIES_WITH_GRADIENTS and not found.doubled
        if has_gradients:
            gradients = make_size_attribution(Tenant.GRADIENTS, "grad", _LOW, "lasts_in_copies")
            rest = _take_sizes(blocks, ledger, rest, found.base, gradients)
        copies = found.copies - has_gradients
        counts = {size * scale: count * copies for size, count in found.base.items()}
        state = make_size_attribution(Tenant.OPTIMIZER_STATE, "state", _LOW, "lasts_in_copies")
        _take_sizes(blocks, ledger, rest, counts, state)
