"""Find parameters, gradients and optimizer state by their sizes, where stacks do not tell.

Each gradient has the size of its parameter, and so has each moment of the optimizer. The gradients are known
best: born in a backward, live when the optimizer starts, and born again in the next step. Blocks of the same
sizes that are live at that moment and were there before are the parameters; what is left in whole copies is
the state of the optimizer. A block is attributed with high confidence only if nothing else of its size could
be the parameter of that gradient.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import Attribution, Ledger
from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.frames import Stacks
from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER
from zprof.analysis.memory.attribution.size_copies import (
    MIN_SINGLE_BYTES,
    MIN_SIZES,
    SizeCounts,
    find_repeated_set,
    fit_copies,
    select_model_sizes,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, UNTAGGED, Bool, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS = TENANT_CODES[Tenant.PARAMETERS], TENANT_CODES[Tenant.GRADIENTS]
_STATE = TENANT_CODES[Tenant.OPTIMIZER_STATE]
#: Share of the gradients' bytes that must have a parameter of the same size for sizes to be used.
_MATCHED_RATIO = 0.5
#: A step whose gradients have at least this share of the largest step's counts as complete.
_COMPLETE_RATIO = 0.9
#: Blocks without gradients are a part of the model only if they hold a share of what has gradients.
_FROZEN_RATIO = 0.01
#: Share of the sizes of a set that one line of code makes if it loops over the parameters.
_LOOP_RATIO = 0.8


def make_size_attribution(tenant: Tenant, sub: str, confidence: Confidence, reason: str) -> Attribution:
    """Return an attribution that only sizes support."""
    return Attribution(tenant=tenant, sub=sub, basis=Basis.SIZES, confidence=confidence, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The start of an optimizer pass: its number, its time, and the gradients that are live."""

    pass_index: int
    time_ns: int
    gradients: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The blocks of each model state at the reference moment; None without gradients in the history."""

    moment: Moment
    parameters: Int
    gradient_counts: SizeCounts


def take_census(blocks: HeldBlocks, features: Features, stacks: Stacks, ledger: Ledger) -> Census | None:
    """Attribute the model states by their sizes; return what was found."""
    moment = _choose_moment(blocks, features, ledger)
    if moment is None:
        _name_standing_blocks(blocks, features, ledger)
        return None
    census = _match_parameters(blocks, features, ledger, moment)
    if census is None:
        _name_standing_blocks(blocks, features, ledger)
        _limit_gradients(blocks, features, ledger, {})
        return None
    _match_constructed_state(blocks, features, stacks, ledger, census)
    _match_standing_state(blocks, features, ledger, census)
    _limit_gradients(blocks, features, ledger, count_sizes(blocks, census.parameters))
    return census


def count_sizes(blocks: HeldBlocks, rows: Int) -> Counter[int]:
    """Return how often each size occurs."""
    return Counter(blocks.requested_bytes[rows].tolist())


def _choose_moment(blocks: HeldBlocks, features: Features, ledger: Ledger) -> Moment | None:
    """Return the first optimizer start at which all gradients of a step are live."""
    is_gradient = ledger.get_tenants().tenant == _GRADIENTS
    moments = []
    for index, time_ns in _list_moments(features):
        rows = np.flatnonzero(is_gradient & (blocks.begin_ns < time_ns) & (blocks.freed_ns > time_ns))
        moments.append(Moment(pass_index=index, time_ns=time_ns, gradients=rows.astype(np.int64)))
    sizes = [int(blocks.requested_bytes[moment.gradients].sum()) for moment in moments]
    if not sizes or not max(sizes):
        return None
    return next(
        moment for moment, size in zip(moments, sizes, strict=True) if size >= _COMPLETE_RATIO * max(sizes)
    )


def _list_moments(features: Features) -> Iterable[tuple[int, int]]:
    """Yield (pass, start) of each optimizer pass after a backward, then the end of a last backward."""
    passes = features.passes
    for index in np.flatnonzero(passes.kind == OPTIMIZER).tolist():
        previous = passes.kind[:index]
        if len(previous) and previous[-1] == BACKWARD:
            yield index, int(passes.first_ns[index])
    if len(passes) and passes.kind[-1] == BACKWARD:
        yield len(passes) - 1, int(passes.last_ns[-1])


def _match_parameters(
    blocks: HeldBlocks, features: Features, ledger: Ledger, moment: Moment
) -> Census | None:
    """Find the parameter of each gradient; None if most gradients have none of their size."""
    names = ledger.get_tenants()
    lasting = find_lasting_blocks(blocks, features, ledger, moment.time_ns)
    is_known = np.zeros(len(blocks), dtype=bool)
    known = (names.tenant == _PARAMETERS) & (names.confidence == 0)
    is_known[known & (blocks.begin_ns < moment.time_ns) & (blocks.freed_ns > moment.time_ns)] = True
    wanted = count_sizes(blocks, moment.gradients)
    available = count_sizes(blocks, np.flatnonzero(is_known | lasting))
    if _sum_bytes(wanted & available) < _MATCHED_RATIO * _sum_bytes(wanted):
        return None
    found = [np.flatnonzero(is_known)]
    for size, count in wanted.items():
        of_size = blocks.requested_bytes == size
        missing = count - int((is_known & of_size).sum())
        rows = np.flatnonzero(lasting & of_size & ~is_known)
        if missing <= 0 or not len(rows):
            continue
        chosen = _order_candidates(blocks, features, rows)[:missing]
        sure = len(rows) <= missing
        ledger.assign(
            chosen,
            make_size_attribution(
                Tenant.PARAMETERS, "weight", _HIGH if sure else _MEDIUM, "sizes_repeat_gradients"
            ),
        )
        found.append(chosen)
    return Census(
        moment=moment, parameters=np.unique(np.concatenate(found)).astype(np.int64), gradient_counts=wanted
    )


def find_lasting_blocks(blocks: HeldBlocks, features: Features, ledger: Ledger, time_ns: int) -> Bool:
    """Mark the blocks that can be a model state at a time: live, unknown or of the optimizer, of no pass."""
    names = ledger.get_tenants()
    live = (blocks.begin_ns < time_ns) & (blocks.freed_ns > time_ns)
    open_tenant = np.isin(names.tenant, (UNTAGGED, _STATE, _PARAMETERS)) & (names.confidence > 0)
    of_optimizer = (names.tenant == _STATE) & (features.made_in == OPTIMIZER)
    of_pass = np.isin(features.made_in, (FORWARD, BACKWARD)) | features.made_by(Origin.OPTIMIZER_INIT)
    lasting: Bool = live & (open_tenant | of_optimizer) & ~of_pass
    return lasting


def _order_candidates(blocks: HeldBlocks, features: Features, rows: Int) -> Int:
    """Order blocks of one size by how likely they are the parameters.

    Those made before the first pass come first, in the order in which they were made: a moment is made from
    its parameter. Then those that are older than the history, first those that stay to its end. Last those of
    the optimizer, newest first: it computes a new weight from the new moments.
    """
    from_optimizer = (features.made_in[rows] == OPTIMIZER) | (features.origin[rows] == Origin.OPTIMIZER)
    before = blocks.before[rows]
    kind = np.where(from_optimizer, 2, np.where(before, 1, 0))
    dies = np.where(before, blocks.freed_ns[rows] != FOREVER, False)
    when = np.where(from_optimizer, -blocks.begin_ns[rows], blocks.begin_ns[rows])
    ordered: Int = rows[np.lexsort((blocks.address[rows], when, dies, kind))]
    return ordered


def _match_constructed_state(
    blocks: HeldBlocks, features: Features, stacks: Stacks, ledger: Ledger, census: Census
) -> None:
    """Attribute state that an optimizer makes when it is built: one line makes a block per parameter."""
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment.time_ns)
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & ~blocks.before & (features.made_in != OPTIMIZER))
    sizes = set(census.gradient_counts)
    for stack in np.unique(blocks.stack[rows]).tolist():
        made = rows[blocks.stack[rows] == stack]
        made = made[np.isin(blocks.requested_bytes[made], list(sizes))]
        if stack >= 0 and len(set(blocks.requested_bytes[made].tolist())) >= _LOOP_RATIO * len(sizes) > 1:
            ledger.assign(
                made,
                make_size_attribution(Tenant.OPTIMIZER_STATE, "state", _MEDIUM, "sizes_repeat_parameters"),
            )


def _match_standing_state(blocks: HeldBlocks, features: Features, ledger: Ledger, census: Census) -> None:
    """Attribute the blocks that are older than the history and not parameters of the gradients."""
    names = ledger.get_tenants()
    lasting = find_lasting_blocks(blocks, features, ledger, census.moment.time_ns) & blocks.before
    lasting[census.parameters] = False
    rows = np.flatnonzero(lasting & (names.tenant == UNTAGGED))
    fit = fit_copies(count_sizes(blocks, rows), census.gradient_counts)
    rows = _take_sizes(
        blocks, ledger, rows, fit.counts, Tenant.OPTIMIZER_STATE, "state", _MEDIUM, "sizes_repeat_parameters"
    )
    rows = _match_single_moments(blocks, ledger, rows, census)
    rows = _match_buckets(blocks, ledger, rows, census)
    rows = rows[blocks.freed_ns[rows] == FOREVER]
    frozen = select_model_sizes(count_sizes(blocks, rows))
    enough_bytes = _FROZEN_RATIO * _sum_bytes(census.gradient_counts)
    if len(frozen) >= MIN_SIZES and _sum_bytes(frozen) >= enough_bytes:
        _take_sizes(blocks, ledger, rows, frozen, Tenant.PARAMETERS, "frozen", _LOW, "lasts_without_gradient")


def _take_sizes(
    blocks: HeldBlocks, ledger: Ledger, rows: Int, counts: SizeCounts, tenant: Tenant, sub: str,
    confidence: Confidence, reason: str,
) -> Int:  # fmt: skip
    """Attribute so many blocks of each size, first those with the fate of most; return the rest."""
    matching = rows[np.isin(blocks.requested_bytes[rows], list(counts) or [-1])]
    sizes, ends = blocks.requested_bytes[matching], blocks.freed_ns[matching]
    most_die = 2 * int(sizes[ends != FOREVER].sum()) > int(sizes.sum())
    taken: list[Int] = []
    for size, count in counts.items():
        of_size = rows[blocks.requested_bytes[rows] == size]
        dies = blocks.freed_ns[of_size] != FOREVER
        taken.append(of_size[np.lexsort((blocks.address[of_size], dies != most_die))][:count])
    chosen = np.concatenate(taken) if taken else rows[:0]
    ledger.assign(chosen, make_size_attribution(tenant, sub, confidence, reason))
    return np.setdiff1d(rows, chosen)


def _match_single_moments(blocks: HeldBlocks, ledger: Ledger, rows: Int, census: Census) -> Int:
    """Attribute sizes that occur once or twice per parameter: some optimizers have moments for some only."""
    held = count_sizes(blocks, rows)
    counts = {
        size: held[size] for size, count in census.gradient_counts.items() if held[size] in (count, 2 * count)
    }
    return _take_sizes(
        blocks, ledger, rows, counts, Tenant.OPTIMIZER_STATE, "state", _LOW, "sizes_repeat_parameters"
    )


def _match_buckets(blocks: HeldBlocks, ledger: Ledger, rows: Int, census: Census) -> Int:
    """Attribute large blocks that hold all gradients once: the buckets of DDP."""
    large = rows[blocks.requested_bytes[rows] >= MIN_SINGLE_BYTES]
    if len(large) and int(blocks.requested_bytes[large].sum()) == _sum_bytes(census.gradient_counts):
        ledger.assign(
            large,
            make_size_attribution(Tenant.COMMUNICATION_BUFFERS, "bucket", _MEDIUM, "sums_to_gradients"),
        )
        return np.setdiff1d(rows, large)
    return rows


def _limit_gradients(blocks: HeldBlocks, features: Features, ledger: Ledger, parameters: SizeCounts) -> None:
    """Lower the confidence where no parameter, or a parameter as well, has the size.

    Gradients without a parameter of their size may be something else that a backward leaves. A block of a
    parameter's size that dies in the backward may be a gradient that was moved away.
    """
    names = ledger.get_tenants()
    for _, time_ns in _list_moments(features):
        live = (blocks.begin_ns < time_ns) & (blocks.freed_ns > time_ns)
        rows = np.flatnonzero(live & (names.tenant == _GRADIENTS) & (features.made_in == BACKWARD))
        for size, count in count_sizes(blocks, rows).items():
            if count > parameters.get(size, 0):
                ledger.limit(rows[blocks.requested_bytes[rows] == size], _MEDIUM)
    temporary = TENANT_CODES[Tenant.TEMPORARY_BUFFERS]
    dying = (names.tenant == temporary) & (features.made_in == BACKWARD)
    ledger.limit(np.flatnonzero(dying & np.isin(blocks.requested_bytes, list(parameters) or [-1])), _MEDIUM)


def _name_standing_blocks(blocks: HeldBlocks, features: Features, ledger: Ledger) -> None:
    """Attribute blocks that last through a history without gradients: a model, perhaps with its optimizer."""
    names = ledger.get_tenants()
    standing = blocks.before & features.stays & (names.tenant == UNTAGGED) & (blocks.stack < 0)
    rows = np.flatnonzero(standing)
    held = select_model_sizes(count_sizes(blocks, rows))
    if len(held) < MIN_SIZES or not len(features.passes):
        return  # a block or two may be anything, and so may memory that no pass uses
    found = find_repeated_set(held)
    confidence = _MEDIUM if not found.copies else _LOW
    rest = _take_sizes(
        blocks, ledger, rows, found.base, Tenant.PARAMETERS, "weight", confidence, "lasts_in_one_set"
        if not found.copies else "lasts_in_copies",
    )  # fmt: skip
    if found.copies:
        scale = 2 if found.doubled else 1
        counts = {size * scale: count * found.copies for size, count in found.base.items()}
        _take_sizes(blocks, ledger, rest, counts, Tenant.OPTIMIZER_STATE, "state", _LOW, "lasts_in_copies")


def _sum_bytes(counts: SizeCounts) -> int:
    return sum(size * count for size, count in counts.items())
