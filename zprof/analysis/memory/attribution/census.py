"""Find parameters, gradients and optimizer state by their sizes, where stacks do not tell.

Each gradient has the size of its parameter, and so has each moment of the optimizer. The gradients are known
best: born in a backward, live when the optimizer starts, and born again in the next step. Blocks of the same
sizes that are live at that moment and were there before are the parameters; what is left in whole copies is
the state of the optimizer. A block is attributed with high confidence only if nothing else of its size could
be the parameter of that gradient.

A parameter, its gradient, its master and each moment have one shape, so their sizes are equal, or in the
ratio of their element sizes: a bf16 weight has moments of twice its size in fp32, an fp32 weight moments of a
quarter in 8 bit.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import product

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.attribution.block_tenants import Attribution, TenantLedger
from zprof.analysis.memory.attribution.frames import Origin
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER
from zprof.analysis.memory.attribution.rules import Features
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, TENANT_CODES, UNTAGGED, Bool, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

#: Ratios of a copy's size to the original's as (numerator, denominator), and the most copies of each.
SCALES: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (1, 4))
_MAX_COPIES = (2, 3, 2, 2)
#: Bytes that a copy lacks count this many times as much as bytes that it explains.
_MISSING_WEIGHT = 2
#: Share of the bytes that must occur in whole copies.
_WHOLE_RATIO = 0.98
#: Fewer sizes are not a set.
MIN_SIZES = 3
#: No model has more sizes.
MAX_SIZES = 2048
_MASTER_COPIES = (3, 2)
_MAX_EQUAL_COPIES = 4
SizeCounts = Mapping[int, int]
#: Smaller single blocks are inputs, flags and tables rather than weights.
MIN_SINGLE_BYTES = 1 << 20
_MAX_VECTOR_BYTES = 1 << 16
#: Sizes of at least one in so many of the largest are matrices.
_SMALL_RATIO = 16
_MIN_VECTORS = 4
_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS = TENANT_CODES[Tenant.PARAMETERS], TENANT_CODES[Tenant.GRADIENTS]
_STATE = TENANT_CODES[Tenant.OPTIMIZER_STATE]
#: Share of the gradients, in bytes or in number, that must have a parameter of the same size.
_MATCHED_RATIO = 0.5
#: Stacks of blocks that are no parameters. A library's optimizer changes parameters in place.
_PASS_ORIGINS = (
    Origin.FORWARD,
    Origin.FORWARD_NAME,
    Origin.BACKWARD,
    Origin.RECOMPUTE,
    Origin.OPTIMIZER,
    Origin.OPTIMIZER_INIT,
)
#: A step whose gradients have at least this share of the largest step's counts as complete.
_COMPLETE_RATIO = 0.9


class CopyFit(Struct, frozen=True, kw_only=True):
    """How many copies of a set, by scale, explain what is held; ``counts`` says of which sizes how many.

    ``matched_ratio``: share of the copies' bytes that is held.
    """

    copies: tuple[int, ...]
    counts: SizeCounts
    matched_ratio: float


def fit_copies(held: SizeCounts, base: SizeCounts) -> CopyFit:
    """Return the copies of ``base`` that explain ``held`` best; all zero if none do."""
    best, best_score = CopyFit(copies=(0,) * len(SCALES), counts={}, matched_ratio=0.0), 0
    for copies in product(*(range(most + 1) for most in _MAX_COPIES)):
        expected: dict[int, int] = {}
        for (numerator, denominator), number in zip(SCALES, copies, strict=True):
            for size, count in base.items() if number else ():
                if size % denominator == 0:
                    key = size * numerator // denominator
                    expected[key] = expected.get(key, 0) + number * count
        if not expected:
            continue
        matched = sum(size * min(count, held.get(size, 0)) for size, count in expected.items())
        total = sum(size * count for size, count in expected.items())
        score = matched - _MISSING_WEIGHT * (total - matched)
        if score > best_score:
            counts = {size: min(count, held.get(size, 0)) for size, count in expected.items()}
            best, best_score = (
                CopyFit(copies=copies, counts=counts, matched_ratio=matched / total),
                score,
            )
    return best


class RepeatedSet(Struct, frozen=True, kw_only=True):
    """A set that occurs several times within what is held: ``base`` once, as the smallest element type.

    ``copies`` is the number of further copies, ``doubled``: they have twice the size.
    """

    base: SizeCounts
    copies: int
    doubled: bool


def find_repeated_set(held: SizeCounts) -> RepeatedSet:
    """Return the smallest set of which ``held`` consists in copies; ``held`` itself if it is one set.

    Nothing but the sizes is used: a model that consists of equal thirds looks like three copies.
    """
    whole = RepeatedSet(base=dict(held), copies=0, doubled=False)
    if len(held) < MIN_SIZES:
        return whole
    for copies in _MASTER_COPIES:
        # The set that occurs once, and ``copies`` times in twice its size; None if there is none.
        rest = dict(held)
        base: dict[int, int] = {}
        unexplained = 0
        for size in sorted(held):
            count = rest[size]
            wanted = copies * count
            if count <= 0:
                continue
            if rest.get(2 * size, 0) >= wanted:
                base[size] = count
                rest[2 * size] -= wanted
            else:
                unexplained += size * count
        total = sum(size * count for size, count in held.items())
        if len(base) >= MIN_SIZES and unexplained <= (1 - _WHOLE_RATIO) * total:
            return RepeatedSet(base=base, copies=copies, doubled=True)
    for number in range(_MAX_EQUAL_COPIES, 1, -1):
        # what occurs less often is no part of the set: an input, the logits, a workspace
        base = {size: count // number for size, count in held.items() if count >= number}
        is_whole = all(held[size] % number == 0 for size in base)
        if is_whole and len(base) >= max(MIN_SIZES, len(held) / 2):
            return RepeatedSet(base=base, copies=number - 1, doubled=False)
    return whole


def select_model_sizes(held: SizeCounts) -> dict[int, int]:
    """Return the sizes that look like a model's: repeated or large, and multiples of its vectors' size.

    A model has a vector per layer (a norm, a bias), and its size divides those of the matrices; a table of
    positions or a batch has another size.
    """
    chosen = {size: count for size, count in held.items() if count > 1 or size >= MIN_SINGLE_BYTES}
    if len(chosen) > MAX_SIZES:
        return {}
    large = [size for size in chosen if size * _SMALL_RATIO >= max(chosen)]
    vectors = {
        size: count
        for size, count in chosen.items()
        if size < _MAX_VECTOR_BYTES
        and count >= _MIN_VECTORS
        and size not in large
        and all(matrix % size == 0 for matrix in large)
    }
    if not vectors:
        return chosen
    vector = max(vectors, key=lambda size: (vectors[size], size))
    return {size: count for size, count in chosen.items() if size % vector == 0}


def make_size_attribution(tenant: Tenant, sub: str, confidence: Confidence, reason: str) -> Attribution:
    """Return an attribution that only sizes support."""
    return Attribution(tenant=tenant, sub=sub, basis=Basis.SIZES, confidence=confidence, reason=reason)


class OptimizerStart(Struct, frozen=True, kw_only=True):
    """The start of an optimizer pass: its number, its time, and the gradients that are live.

    ``since_ns`` is when the first of these was made: their parameters are older.
    """

    pass_index: int
    time_ns: int
    since_ns: int
    gradients: Int


class Census(Struct, frozen=True, kw_only=True):
    """The parameters at the reference moment, and how often each size occurs among its gradients."""

    moment: OptimizerStart
    parameters: Int
    gradient_counts: SizeCounts


def take_census(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> Census | None:
    """Attribute the parameters of the gradients by their sizes; None without gradients to go by."""
    moment = _choose_moment(blocks, features, ledger)
    return None if moment is None else _match_parameters(blocks, features, ledger, moment)


def count_sizes(blocks: HeldBlocks, rows: Int) -> Counter[int]:
    """Return how often each size occurs."""
    sizes, counts = np.unique(blocks.requested_bytes[rows], return_counts=True)
    return Counter(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))


def group_rows(rows: Int, key: Int) -> dict[int, Int]:
    """Return the rows of each key, in their order; ``key`` has one entry per row."""
    if not len(rows):
        return {}
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(rows[order], first[1:]), strict=True))


def group_by_size(blocks: HeldBlocks, rows: Int) -> dict[int, Int]:
    """Return the rows of each size, in their order."""
    return group_rows(rows, blocks.requested_bytes[rows])


class OptimizerStarts(Struct, frozen=True, kw_only=True):
    """The starts of the optimizer passes that follow a backward, and the end of a last backward."""

    pass_index: Int
    time_ns: Int

    def find_first(self, blocks: HeldBlocks, rows: Int) -> Int:
        """Return the first moment at which each block is live; -1 if there is none."""
        index = np.searchsorted(self.time_ns, blocks.begin_ns[rows], side="right")
        reached = np.append(self.time_ns, FOREVER)[index]
        return np.where((reached != FOREVER) & (blocks.freed_ns[rows] > reached), index, -1)


def find_moments(features: Features) -> OptimizerStarts:
    """Return the moments at which the gradients of a step are live, in order."""
    passes = features.passes
    after_backward = np.flatnonzero((passes.kind[1:] == OPTIMIZER) & (passes.kind[:-1] == BACKWARD)) + 1
    times_ns = passes.first_ns[after_backward]
    if len(passes) and passes.kind[-1] == BACKWARD:
        after_backward = np.append(after_backward, len(passes) - 1)
        times_ns = np.append(times_ns, passes.last_ns[-1])
    return OptimizerStarts(pass_index=after_backward.astype(np.int64), time_ns=times_ns)


def _choose_moment(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> OptimizerStart | None:
    """Return the first moment at which all gradients of a step are live."""
    moments = find_moments(features)
    gradients = np.flatnonzero(ledger.get_tenants().tenant == _GRADIENTS)
    first = moments.find_first(blocks, gradients)
    gradients, first = gradients[first >= 0], first[first >= 0]
    if not len(gradients):
        return None
    sizes = np.bincount(first, weights=blocks.requested_bytes[gradients])
    chosen = int(np.flatnonzero(sizes >= _COMPLETE_RATIO * sizes.max())[0])
    time_ns = int(moments.time_ns[chosen])
    rows = gradients[(blocks.begin_ns[gradients] < time_ns) & (blocks.freed_ns[gradients] > time_ns)]
    if len(count_sizes(blocks, rows)) > MAX_SIZES:
        return None  # no model has so many
    return OptimizerStart(
        pass_index=int(moments.pass_index[chosen]),
        time_ns=time_ns,
        since_ns=int(blocks.begin_ns[rows].min()),
        gradients=rows.astype(np.int64),
    )


def _match_parameters(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, moment: OptimizerStart
) -> Census | None:
    """Find the parameter of each gradient; None if most gradients have none of their size."""
    names = ledger.get_tenants()
    lasting = find_lasting_blocks(blocks, features, ledger, moment)
    is_known = np.zeros(len(blocks), dtype=bool)
    known = (names.tenant == _PARAMETERS) & (names.confidence == 0)
    is_known[known & (blocks.begin_ns < moment.since_ns) & (blocks.freed_ns > moment.time_ns)] = True
    wanted = count_sizes(blocks, moment.gradients)
    available = count_sizes(blocks, np.flatnonzero(is_known | lasting))
    paired = wanted & available
    paired_ratio = max(sum_bytes(paired) / sum_bytes(wanted), paired.total() / wanted.total())
    if paired_ratio < _MATCHED_RATIO:
        return None
    found = [np.flatnonzero(is_known)]
    known_counts = count_sizes(blocks, found[0])
    gradients = group_by_size(blocks, moment.gradients)
    for size, rows in group_by_size(blocks, np.flatnonzero(lasting & ~is_known)).items():
        missing = wanted[size] - known_counts[size]
        if missing <= 0:
            continue
        chosen = _order_candidates(blocks, features, rows)[:missing]
        sure = (
            len(rows) <= missing
            and len(wanted) >= MIN_SIZES
            and _are_sure(blocks, features, moment, gradients[size], chosen)
        )
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


def _are_sure(
    blocks: HeldBlocks, features: Features, moment: OptimizerStart, gradients: Int, chosen: Int
) -> bool:
    """Return True unless the gradients of one size, or what was chosen for them, could be something else.

    A lone pair of blocks may be the workspaces of the forward's thread and of the backward's: they stay, and
    have no stacks. A block of an optimizer may be its state.
    """
    stay = blocks.freed_ns[gradients] == FOREVER
    lone = len(gradients) == 1 and bool((stay & ~features.has_stack[gradients]).any())
    from_optimizer = bool((features.made_in[chosen] == OPTIMIZER).any())
    # what ends with the step may be gradients that are older than the history
    next_ns = np.append(features.passes.first_ns, FOREVER)[moment.pass_index + 1]
    stays = bool((blocks.freed_ns[chosen] >= next_ns).all())
    flat = bool((features.origin[gradients] == Origin.REDUCE).any())
    return stays and not lone and not from_optimizer and not flat


def find_lasting_blocks(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, moment: OptimizerStart
) -> Bool:
    """Mark what can be a model state: live, older than the gradients, of no forward or backward."""
    names = ledger.get_tenants()
    live = (blocks.begin_ns < moment.since_ns) & (blocks.freed_ns > moment.time_ns)
    open_tenant = np.isin(names.tenant, (UNTAGGED, _STATE, _PARAMETERS)) & (names.confidence > 0)
    of_optimizer = (names.tenant == _STATE) & (features.made_in == OPTIMIZER)
    of_pass = np.isin(features.made_in, (FORWARD, BACKWARD)) | features.made_by(*_PASS_ORIGINS)
    return live & (open_tenant | of_optimizer) & ~of_pass


def _order_candidates(blocks: HeldBlocks, features: Features, rows: Int) -> Int:
    """Order blocks of one size by how likely they are the parameters.

    Those made before the first pass come first, in the order in which they were made: a moment is made from
    its parameter. Then those that are older than the history, first those that stay to its end. Last those of
    the optimizer, newest first: it computes a new weight from the new moments.
    """
    from_optimizer = (features.made_in[rows] == OPTIMIZER) | np.isin(
        features.origin[rows], (Origin.OPTIMIZER, Origin.OPTIMIZER_CALL)
    )
    before = blocks.before[rows]
    kind = np.where(from_optimizer, 2, np.where(before, 1, 0))
    dies = np.where(before, blocks.freed_ns[rows] != FOREVER, False)
    when = np.where(from_optimizer, -blocks.begin_ns[rows], blocks.begin_ns[rows])
    return rows[np.lexsort((blocks.address[rows], when, dies, kind))]


def sum_bytes(counts: SizeCounts) -> int:
    """Return the bytes of so many blocks of each size."""
    return sum(size * count for size, count in counts.items())
