"""Assign a tenant to every block of a history.

The program's own tag decides, else the first rule that matches the block's stack and lifetime, else the sizes
of all blocks together (``census``). Tags are written with
``torch.cuda.memory._set_memory_metadata("zprof:<tenant>[/<sub>]")``.

An optimizer may replace parameters instead of changing them in place: ``p.data = p.data - update`` allocates
a new block and frees the old one. The new block is the youngest block of that size that is live when the old
one is freed; if it is replaced in turn, the chain continues from there. If several lines allocate blocks of
that size, the line with most of the recent replacements is taken.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from zprof.analysis.memory.attribution.block_tenants import Attribution, BlockTenants, TenantLedger
from zprof.analysis.memory.attribution.census import (
    MIN_SINGLE_BYTES,
    MIN_SIZES,
    SCALES,
    Census,
    SizeCounts,
    count_sizes,
    find_lasting_blocks,
    find_moments,
    find_repeated_set,
    fit_copies,
    group_by_size,
    group_rows,
    make_size_attribution,
    select_model_sizes,
    sum_bytes,
    take_census,
)
from zprof.analysis.memory.attribution.frames import Origin, StackIndex, classify_stacks
from zprof.analysis.memory.attribution.passes import BACKWARD, NONE, OPTIMIZER, AllocationPasses
from zprof.analysis.memory.attribution.rules import (
    CAST,
    HOPPER_WORKSPACE_BYTES,
    LAST_RESORT_RULES,
    TENANT_RULES,
    WORKSPACE_BYTES,
    Features,
    TenantRule,
    compute_features,
    find_first_rule,
    find_previous_blocks,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, UNTAGGED, Bool, Int, PhaseRange
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import WEIGHT_COPY, Tenant

_MEDIUM, _LOW = Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS = TENANT_CODES[Tenant.PARAMETERS], TENANT_CODES[Tenant.GRADIENTS]
_STATE = TENANT_CODES[Tenant.OPTIMIZER_STATE]
#: Blocks without gradients belong to the model only if they hold at least this share of the bytes with
#: gradients.
_FROZEN_RATIO = 0.01
#: Share of a set's sizes that one line of code allocates if it loops over the parameters.
_LOOP_RATIO = 0.8
#: If gradients hold fewer bytes than this share of the buckets, they are views of the buckets.
_VIEWS_RATIO = 0.5
#: Steps that are checked for this.
_MAX_JUDGED = 16
_WORKSPACE_SIZES = (WORKSPACE_BYTES, HOPPER_WORKSPACE_BYTES)
#: Number of copies in addition to the parameters: gradients and two moments.
_COPIES_WITH_GRADIENTS = 3
#: One workspace for the forward thread and one for the backward thread.
_MAX_WORKSPACES = 2
TAG_PREFIX = "zprof:"
_MAX_SUB = 40
#: A loss, a norm or a flag has a few bytes; a parameter rarely does.
_SCALAR_BYTES = 64
_SHARDING_ORIGINS = (Origin.GATHER, Origin.REDUCE, Origin.SHARD, Origin.COLLECTIVE)
#: More lines than any optimizer uses to replace one parameter.
_MAX_REPLACEMENTS = 8
#: Maximum replacements per step that are followed one by one to vote for a line of code.
_MAX_FOLLOWED = 2000
#: Maximum number of followed steps; a history rarely has more than a hundred.
_MAX_STEPS = 2000


def attribute_state(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None
) -> None:
    """Attribute model state by size, starting from the gradients' parameters if they are known."""
    if census is None:
        _name_standing_blocks(blocks, features, ledger)
    else:
        _match_constructed_state(blocks, features, ledger, census)
        # Attribute copies of gradients that Python code makes between backward pass and optimizer.
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
    """Attribute state allocated by an optimizer's constructor: one line allocates a block per parameter."""
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment)
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & ~blocks.before & (features.made_in != OPTIMIZER))
    if _LOOP_RATIO * len(census.gradient_counts) <= 1:
        return  # one block is no loop
    for of_stack in group_rows(rows, blocks.stack[rows]).values():
        if features.has_stack[of_stack[0]]:
            ledger.assign(_find_copies(blocks, of_stack, census), _make_state(_MEDIUM))


def _find_copies(blocks: HeldBlocks, rows: Int, census: Census) -> Int:
    """Return the rows that repeat the sizes of most gradients, in any element type; empty if none do."""
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
    """Attribute blocks older than the history that are not the gradients' parameters."""
    names = ledger.get_tenants()
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment) & blocks.before
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & (names.tenant == UNTAGGED))
    fit = fit_copies(count_sizes(blocks, rows), census.gradient_counts)
    rows = _take_sizes(blocks, ledger, rows, fit.counts, _make_state(_MEDIUM))
    held = count_sizes(blocks, rows)
    # some optimizers have moments for only some parameters
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
    """Attribute this many blocks of each size, starting with the most common lifetime; return the rest."""
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
    """Attribute one or two blocks of workspace size; return the rest."""
    for size in _WORKSPACE_SIZES:
        found = rows[blocks.requested_bytes[rows] == size]
        if 0 < len(found) <= _MAX_WORKSPACES:
            ledger.assign(found, _make_workspace(_MEDIUM))
            rows = np.setdiff1d(rows, found)
    return rows


def _make_workspace(confidence: Confidence) -> Attribution:
    return make_size_attribution(Tenant.TEMPORARY_BUFFERS, "workspace", confidence, "size_of_a_workspace")


def _match_workspaces(blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census) -> None:
    """Attribute long-lived blocks of a backward pass that have no stack and that no parameter explains."""
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
    """Attribute DDP's buckets: large blocks that together hold all gradients once."""
    large = rows[blocks.requested_bytes[rows] >= MIN_SINGLE_BYTES]
    if len(large) and int(blocks.requested_bytes[large].sum()) == sum_bytes(census.gradient_counts):
        ledger.assign(
            large,
            make_size_attribution(Tenant.COMMUNICATION_BUFFERS, "bucket", _MEDIUM, "sums_to_gradients"),
        )
        return np.setdiff1d(rows, large)
    return rows


def _judge_buckets(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> None:
    """Attribute DDP's buckets as gradients if there are no others: the gradients are views of the buckets."""
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
    """Attribute blocks live throughout a history without gradients: a model, perhaps with its optimizer."""
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
        # of four equal copies, one is the gradients
        has_gradients = found.copies == _COPIES_WITH_GRADIENTS and not found.doubled
        if has_gradients:
            gradients = make_size_attribution(Tenant.GRADIENTS, "grad", _LOW, "lasts_in_copies")
            rest = _take_sizes(blocks, ledger, rest, found.base, gradients)
        copies = found.copies - has_gradients
        counts = {size * scale: count * copies for size, count in found.base.items()}
        state = make_size_attribution(Tenant.OPTIMIZER_STATE, "state", _LOW, "lasts_in_copies")
        _take_sizes(blocks, ledger, rest, counts, state)


def attribute_history(
    blocks: HeldBlocks, stacks: StackIndex, ranges: Sequence[PhaseRange] = ()
) -> tuple[BlockTenants, AllocationPasses, bool]:
    """Return every block's owner, the passes, and whether the program keeps tensors for a backward pass.

    It does if a forward pass without a backward pass keeps tensors as if one followed. ``ranges`` are the
    phases annotated by the program.
    """
    origin = classify_stacks(stacks, blocks.stack)
    features = compute_features(blocks, origin, stacks.is_known(blocks.stack), ranges)
    ledger = TenantLedger(len(blocks))
    _apply_rules(ledger, blocks, features)
    census = take_census(blocks, features, ledger)
    attribute_state(blocks, features, ledger, census)
    if census is not None:
        follow_parameters(blocks, features, ledger, census)
    _apply_last_rules(ledger, features)
    lower_confidences(blocks, features, ledger, census, is_annotated=bool(ranges))
    # Distinguish autocast's weight copies, which have half the weight's size, from its activation copies.
    names = ledger.get_tenants()
    weights = np.unique(blocks.requested_bytes[names.tenant == TENANT_CODES[Tenant.PARAMETERS]])
    for number, attribution in enumerate(names.attributions):
        if attribution.sub == CAST:
            rows = np.flatnonzero(names.number == number)
            copies = rows[np.isin(2 * blocks.requested_bytes[rows], weights)]
            ledger.assign(copies, replace(attribution, sub=WEIGHT_COPY))
    _apply_tags(ledger, blocks)
    return ledger.get_tenants(), features.passes, bool(features.outlives_forward.any())


def _apply_tags(ledger: TenantLedger, blocks: HeldBlocks) -> None:
    for number, text in enumerate(blocks.tags):
        claim = parse_tag(text)
        if claim is not None:
            tenant, sub = claim
            ledger.assign(
                np.flatnonzero(blocks.tag == number),
                Attribution(
                    tenant=tenant, sub=sub, basis=Basis.TAGGED, confidence=Confidence.HIGH, reason="tag"
                ),
            )


def _apply_rules(ledger: TenantLedger, blocks: HeldBlocks, features: Features) -> None:
    """Apply the rules, then the attribution of the same block in the previous step."""
    rule = find_first_rule(TENANT_RULES, features)
    for number, entry in enumerate(TENANT_RULES):
        ledger.assign(np.flatnonzero(rule == number), _make_attribution(entry, entry.confidence))
    open_rows = np.flatnonzero((rule < 0) & features.in_open_pass & features.stays)
    twin = find_previous_blocks(blocks, features)[open_rows] if len(open_rows) else open_rows
    twin_rule = np.where(twin >= 0, rule[np.maximum(twin, 0)], -1)
    for number, entry in enumerate(TENANT_RULES):
        lower = Confidence.MEDIUM if entry.confidence is Confidence.HIGH else Confidence.LOW
        ledger.assign(open_rows[twin_rule == number], _make_attribution(entry, lower))


def _apply_last_rules(ledger: TenantLedger, features: Features) -> None:
    """Apply the rules of last resort to blocks that are still unknown."""
    is_unknown = ledger.get_tenants().tenant == UNTAGGED
    last = find_first_rule(LAST_RESORT_RULES, features)
    for number, entry in enumerate(LAST_RESORT_RULES):
        rows = np.flatnonzero(is_unknown & (last == number))
        ledger.assign(rows, _make_attribution(entry, entry.confidence))


def _make_attribution(rule: TenantRule, confidence: Confidence) -> Attribution:
    return Attribution(
        tenant=rule.tenant, sub=rule.sub, basis=Basis.RULE, confidence=confidence, reason=rule.name
    )


def sum_tenant_bytes(tenant: Int, sizes: Int) -> tuple[dict[Tenant, int], int]:
    """Return the bytes by tenant, and the untagged bytes."""
    bytes_by_code = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(bytes_by_code, tenant, sizes)
    return {owner: int(bytes_by_code[code]) for owner, code in TENANT_CODES.items()}, int(
        bytes_by_code[UNTAGGED]
    )


def parse_tag(text: str) -> tuple[Tenant, str] | None:
    """Return a tag's tenant and sub; None if it has no tenant."""
    if not text.startswith(TAG_PREFIX):
        return None
    tenant, _, sub = text[len(TAG_PREFIX) :].partition("/")
    try:
        return Tenant(tenant), sub[:_MAX_SUB]
    except ValueError:
        return None


def lower_confidences(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None, *, is_annotated: bool
) -> None:
    """Lower the confidence of uncertain blocks; ``is_annotated``: the program annotated its phases."""
    names = ledger.get_tenants()
    uncertain = np.zeros(len(blocks), dtype=bool)
    if not bool(features.has_stack.any()):
        # passes and lifetimes only show the usual case; without annotations, even the passes are a guess
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
    """Mark possible gradients that are freed within their backward pass: reduced to shards, or moved away."""
    made: Bool = features.made_in == BACKWARD
    is_flat = census is None or len(census.gradient_counts) < MIN_SIZES
    if bool(features.made_by(*_SHARDING_ORIGINS).any()) or is_flat:
        return made
    lasts = ledger.get_tenants().tenant == TENANT_CODES[Tenant.PARAMETERS]
    sizes = np.unique(blocks.requested_bytes[lasts | (blocks.before & features.stays)])
    return made & np.isin(blocks.requested_bytes, sizes)


def _find_possible_master_gradients(blocks: HeldBlocks, features: Features, census: Census | None) -> Bool:
    """Mark blocks of a custom optimizer step that may be gradients in another type."""
    made: Bool = (features.made_in == OPTIMIZER) & ~features.made_by(Origin.OPTIMIZER)
    if census is None:
        return made
    sizes = np.array(list(census.gradient_counts), dtype=np.int64)
    return made & np.isin(blocks.requested_bytes, np.concatenate([sizes, 2 * sizes, sizes // 2]))


def _find_possible_parameters(blocks: HeldBlocks, features: Features, census: Census | None) -> Bool:
    """Mark blocks made by a custom optimizer step, unless the parameters provably stay in place."""
    made: Bool = (features.made_in == OPTIMIZER) & ~features.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_INIT)
    if census is None or bool((blocks.freed_ns[census.parameters] != FOREVER).any()):
        return made
    return made & (features.under_way < census.moment.pass_index)


def _find_unpaired_gradients(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census | None
) -> tuple[Bool, Bool]:
    """Mark gradients that outnumber the parameters of their size, and lone gradients.

    A backward pass may leave blocks other than gradients. A lone surviving block without a stack may be a
    workspace, and its apparent parameter another workspace.
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


def follow_parameters(blocks: HeldBlocks, features: Features, ledger: TenantLedger, census: Census) -> None:
    """Attribute the parameters' successors, starting from the census."""
    passes = features.passes
    parameters = census.parameters
    made_rows = np.flatnonzero(features.made_in == OPTIMIZER)
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    for index in optimizers[optimizers >= census.moment.pass_index][:_MAX_STEPS].tolist():
        begin_ns = int(passes.first_ns[index])
        end_ns = int(passes.first_ns[index + 1]) if index + 1 < len(passes) else FOREVER
        freed = blocks.freed_ns[parameters]
        dead = parameters[(freed >= begin_ns) & (freed < end_ns)]
        if not len(dead):
            continue
        first, last = np.searchsorted(features.under_way[made_rows], [index, index + 1])
        made = made_rows[first:last]
        kept = made[blocks.freed_ns[made] >= end_ns]
        if not len(kept):
            continue
        successors = _choose_successors(blocks, dead, made, kept)
        ledger.limit(kept, Confidence.MEDIUM)
        ledger.assign(
            successors,
            Attribution(
                tenant=Tenant.PARAMETERS,
                sub="weight",
                basis=Basis.RULE,
                confidence=Confidence.MEDIUM,
                reason="replaces_parameter",
            ),
        )
        parameters = np.concatenate([np.setdiff1d(parameters, dead), successors])


def _choose_successors(blocks: HeldBlocks, dead: Int, made: Int, kept: Int) -> Int:
    """Return as many kept blocks of each size as parameters of that size were freed."""
    votes: Counter[int] = Counter()
    chosen: list[Int] = []
    is_kept = np.zeros(len(blocks), dtype=bool)
    is_kept[kept] = True
    wanted = count_sizes(blocks, dead)
    made_by_size = {size: rows for size, rows in group_by_size(blocks, made).items() if wanted[size]}
    followed = dead[np.isin(blocks.requested_bytes[dead], list(made_by_size) or [-1])]
    for row in followed[:_MAX_FOLLOWED].tolist():
        last = _follow(blocks, row, made_by_size[int(blocks.requested_bytes[row])], is_kept)
        if last >= 0:
            votes[int(blocks.stack[last])] += 1
    for size, candidates in made_by_size.items():
        rows = candidates[is_kept[candidates]]
        rank = np.array([-votes[stack] for stack in blocks.stack[rows].tolist()], dtype=np.int64)
        chosen.append(rows[np.lexsort((-blocks.begin_ns[rows], rank))][: wanted[size]])
    return np.concatenate(chosen) if chosen else dead[:0]


def _follow(blocks: HeldBlocks, row: int, made: Int, is_kept: Bool) -> int:
    """Return the kept block at the end of a chain of replacements; -1 if the chain breaks."""
    for _ in range(_MAX_REPLACEMENTS):
        freed_ns = blocks.freed_ns[row]
        live = made[(blocks.begin_ns[made] <= freed_ns) & (blocks.freed_ns[made] > freed_ns)]
        if not len(live):
            return -1
        row = int(live[np.argmax(blocks.begin_ns[live])])
        if is_kept[row]:
            return row
    return -1
