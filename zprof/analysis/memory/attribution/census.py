"""Find parameters, gradients and optimizer state by size, where stacks do not identify them.

Each gradient has the size of its parameter, and so does each optimizer moment. Gradients are the easiest to
find: allocated in a backward pass, live when the optimizer starts, and allocated again in the next step.
Older blocks of the same sizes that are live at that moment are the parameters; remaining whole copies are
optimizer state. A block is attributed with high confidence only if no other block of its size could be the
gradient's parameter.

A parameter, its gradient, its master copy and each moment have the same shape, so their sizes are equal or in
the ratio of their element sizes: a bf16 weight has fp32 moments of twice its size, an fp32 weight 8-bit
moments of a quarter of its size.
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

#: Ratios of a copy's size to the original's as (numerator, denominator), and the maximum number of copies.
SCALES: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (1, 4))
_MAX_COPIES = (2, 3, 2, 2)
#: Weight of a byte missing from a copy, relative to a byte explained by it.
_MISSING_WEIGHT = 2
#: Share of the bytes that must occur in whole copies.
_WHOLE_RATIO = 0.98
#: Minimum number of sizes in a set.
MIN_SIZES = 3
#: Maximum number of distinct sizes in a model.
MAX_SIZES = 2048
_MASTER_COPIES = (3, 2)
_MAX_EQUAL_COPIES = 4
SizeCounts = Mapping[int, int]
#: Smaller single blocks are more likely inputs, flags or tables than weights.
MIN_SINGLE_BYTES = 1 << 20
_MAX_VECTOR_BYTES = 1 << 16
#: Sizes of at least the largest divided by this are matrices.
_SMALL_RATIO = 16
_MIN_VECTORS = 4
_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS = TENANT_CODES[Tenant.PARAMETERS], TENANT_CODES[Tenant.GRADIENTS]
_STATE = TENANT_CODES[Tenant.OPTIMIZER_STATE]
#: Share of the gradients, in bytes or in number, that must have a parameter of the same size.
_MATCHED_RATIO = 0.5
#: Origins of blocks that are not parameters. A library's optimizer changes parameters in place.
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
    """The number of copies of a set, by scale, that explain the held blocks; ``counts``: the number per size.

    ``matched_ratio``: share of the copies' bytes that the held blocks contain.
    """

    copies: tuple[int, ...]
    counts: SizeCounts
    matched_ratio: float


def fit_copies(held: SizeCounts, base: SizeCounts) -> CopyFit:
    """Return the copy counts of ``base`` that best explain ``held``; all zero if none do."""
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
    """A set that occurs several times in the held blocks: ``base`` is one copy in the smallest element type.

    ``copies``: number of further copies; ``doubled``: these have twice the size.
    """

    base: SizeCounts
    copies: int
    doubled: bool


def find_repeated_set(held: SizeCounts) -> RepeatedSet:
    """Return the smallest set whose copies make up ``held``; ``held`` itself if nothing repeats.

    Only sizes are used, so a model of three equal thirds looks like three copies.
    """
    whole = RepeatedSet(base=dict(held), copies=0, doubled=False)
    if len(held) < MIN_SIZES:
        return whole
    for copies in _MASTER_COPIES:
        # The set must occur once, and ``copies`` times at twice its size.
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
        # sizes that occur less often are not in the set: an input, the logits, a workspace
        base = {size: count // number for size, count in held.items() if count >= number}
        is_whole = all(held[size] % number == 0 for size in base)
        if is_whole and len(base) >= max(MIN_SIZES, len(held) / 2):
            return RepeatedSet(base=base, copies=number - 1, doubled=False)
    return whole


def select_model_sizes(held: SizeCounts) -> dict[int, int]:
    """Return the sizes that look like a model's: repeated or large, and multiples of its vector size.

    A model has a vector per layer (a norm, a bias) whose size divides the matrix sizes; a position table or a
    batch has a different size.
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
    """Return an attribution based only on size."""
    return Attribution(tenant=tenant, sub=sub, basis=Basis.SIZES, confidence=confidence, reason=reason)


class OptimizerStart(Struct, frozen=True, kw_only=True):
    """The start of an optimizer pass: its number, its time, and the live gradients.

    ``since_ns``: when the first of these gradients was allocated; their parameters are older.
    """

    pass_index: int
    time_ns: int
    since_ns: int
    gradients: Int


class Census(Struct, frozen=True, kw_only=True):
    """The parameters at the reference moment, and the count of each size among its gradients."""

    moment: OptimizerStart
    parameters: Int
    gradient_counts: SizeCounts


def take_census(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> Census | None:
    """Attribute the gradients' parameters by size; None without gradients."""
    moment = _choose_moment(blocks, features, ledger)
    return None if moment is None else _match_parameters(blocks, features, ledger, moment)


def count_sizes(blocks: HeldBlocks, rows: Int) -> Counter[int]:
    """Return the number of occurrences of each size."""
    sizes, counts = np.unique(blocks.requested_bytes[rows], return_counts=True)
    return Counter(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))


def group_rows(rows: Int, key: Int) -> dict[int, Int]:
    """Return the rows of each key, in row order; ``key`` has one entry per row."""
    if not len(rows):
        return {}
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(rows[order], first[1:]), strict=True))


def group_by_size(blocks: HeldBlocks, rows: Int) -> dict[int, Int]:
    """Return the rows of each size, in row order."""
    return group_rows(rows, blocks.requested_bytes[rows])


class OptimizerStarts(Struct, frozen=True, kw_only=True):
    """The starts of the optimizer passes that follow a backward pass, and the end of a final backward
    pass.
    """

    pass_index: Int
    time_ns: Int

    def find_first(self, blocks: HeldBlocks, rows: Int) -> Int:
        """Return the first moment at which each block is live; -1 if it never is."""
        index = np.searchsorted(self.time_ns, blocks.begin_ns[rows], side="right")
        reached = np.append(self.time_ns, FOREVER)[index]
        return np.where((reached != FOREVER) & (blocks.freed_ns[rows] > reached), index, -1)


def find_moments(features: Features) -> OptimizerStarts:
    """Return the moments at which a step's gradients are live, in order."""
    passes = features.passes
    after_backward = np.flatnonzero((passes.kind[1:] == OPTIMIZER) & (passes.kind[:-1] == BACKWARD)) + 1
    times_ns = passes.first_ns[after_backward]
    if len(passes) and passes.kind[-1] == BACKWARD:
        after_backward = np.append(after_backward, len(passes) - 1)
        times_ns = np.append(times_ns, passes.last_ns[-1])
    return OptimizerStarts(pass_index=after_backward.astype(np.int64), time_ns=times_ns)


def _choose_moment(blocks: HeldBlocks, features: Features, ledger: TenantLedger) -> OptimizerStart | None:
    """Return the first moment at which all of a step's gradients are live."""
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
    """Find each gradient's parameter; None if most gradients have no candidate of their size."""
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
    """Return True unless the gradients of one size, or their chosen parameters, could be something else.

    A lone pair of blocks may be the workspaces of the forward and backward threads, which stay and have no
    stacks. An optimizer's block may be its state.
    """
    stay = blocks.freed_ns[gradients] == FOREVER
    lone = len(gradients) == 1 and bool((stay & ~features.has_stack[gradients]).any())
    from_optimizer = bool((features.made_in[chosen] == OPTIMIZER).any())
    # blocks that end with the step may be gradients older than the history
    next_ns = np.append(features.passes.first_ns, FOREVER)[moment.pass_index + 1]
    stays = bool((blocks.freed_ns[chosen] >= next_ns).all())
    flat = bool((features.origin[gradients] == Origin.REDUCE).any())
    return stays and not lone and not from_optimizer and not flat


def find_lasting_blocks(
    blocks: HeldBlocks, features: Features, ledger: TenantLedger, moment: OptimizerStart
) -> Bool:
    """Mark possible model state: live, older than the gradients, not from a forward or backward pass."""
    names = ledger.get_tenants()
    live = (blocks.begin_ns < moment.since_ns) & (blocks.freed_ns > moment.time_ns)
    open_tenant = np.isin(names.tenant, (UNTAGGED, _STATE, _PARAMETERS)) & (names.confidence > 0)
    of_optimizer = (names.tenant == _STATE) & (features.made_in == OPTIMIZER)
    of_pass = np.isin(features.made_in, (FORWARD, BACKWARD)) | features.made_by(*_PASS_ORIGINS)
    return live & (open_tenant | of_optimizer) & ~of_pass


def _order_candidates(blocks: HeldBlocks, features: Features, rows: Int) -> Int:
    """Order blocks of one size by how likely they are the parameters.

    Blocks from before the first pass come first, in order of allocation: a moment is made from its parameter.
    Then blocks older than the history, those that stay to its end first. Last the optimizer's blocks, newest
    first: it computes a new weight from the new moments.
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
    """Return the total bytes of these counts of each size."""
    return sum(size * count for size, count in counts.items())
