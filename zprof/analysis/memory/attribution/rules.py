"""Find a block's tenant by the first rule that matches its stack and its lifetime in the step.

To add a rule, add it to ``TENANT_RULES`` with a mask over the blocks from their features ``f``, its tenant
and its confidence. HIGH: the stack identifies the owner, or the lifetime within the step rules out all
others. MEDIUM: the usual case, with known exceptions. LOW: a best guess, because the history ends too early.

A block whose end is not in the history is compared with the same block of the previous step.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.attribution.frames import Origin
from zprof.analysis.memory.attribution.passes import (
    BACKWARD,
    CLOCK_NS,
    FORWARD,
    NONE,
    OPTIMIZER,
    AllocationPasses,
    find_passes,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Bool, Int, PhaseRange
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

#: Maximum live bytes at the start of a forward pass, as a share of the history's maximum.
_VALLEY_RATIO = 0.02
#: A new forward pass starts only if at least this share was live in between.
_HIGH_RATIO = 0.5
#: Minimum share of its blocks that a forward pass keeps for a backward pass.
_KEPT_RATIO = 0.2
#: Size of the workspace that torch allocates for cuBLAS, once per thread and stream, and keeps:
#: ``CUBLAS_WORKSPACE_CONFIG`` :4096:2:16:8, and 32 MiB on Hopper (``CUDABlas.cpp``).
WORKSPACE_BYTES = 8_519_680
HOPPER_WORKSPACE_BYTES = 32 << 20
_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS, _STATE = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
_ACTIVATIONS, _TEMPORARY = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS
_COMMUNICATION = Tenant.COMMUNICATION_BUFFERS
CAST = "cast"


class Features(Struct, frozen=True, kw_only=True):
    """Columns over the blocks; rules combine them to masks.

    made_in: the kind of pass that the block indicates (NONE: it indicates none, or is older than the
    history). ends_in: kind of the pass running when it was freed. under_way: index of the pass running when
    it was allocated, -1 before the first. stays: still live when the history ended. in_open_pass: the history
    ends in its pass, so the end of a block that stays is unknown. outlives_pass: live after its pass's last
    allocation. outlives_step: live after a completed optimizer pass. sees_*: live when the next pass of that
    kind started. sees_next_step: live when the backward pass of the following step started. is_standing:
    allocated before the first pass or outside passes, and live in one. optimizer_is_next: an optimizer pass
    comes before the next forward pass. outlives_recompute: live after the run of recomputed operators that
    allocated it. outlives_forward: in a history without a backward pass, live after its forward pass's last
    allocation. ends_in_first_backward, ends_after_backward: freed in the history's first backward pass, or
    after that pass started.
    """

    origin: Int
    has_stack: Bool
    requested_bytes: Int
    made_in: Int
    under_way: Int
    passes: AllocationPasses
    ends_in: Int
    stays: Bool
    before: Bool
    in_open_pass: Bool
    outlives_pass: Bool
    sees_backward: Bool
    sees_optimizer: Bool
    sees_next_step: Bool
    optimizer_is_next: Bool
    outlives_step: Bool
    is_standing: Bool
    outlives_recompute: Bool
    outlives_forward: Bool
    ends_in_first_backward: Bool
    ends_after_backward: Bool
    has_backward: Bool

    def made_by(self, *origins: Origin) -> Bool:
        """Mark the blocks with these origins."""
        return np.isin(self.origin, [int(origin) for origin in origins])


def compute_features(
    blocks: HeldBlocks, origin: Int, has_stack: Bool, ranges: Sequence[PhaseRange] = ()
) -> Features:
    """Compute the features of every block; ``ranges`` are annotated phases."""
    passes, member = find_passes(blocks, origin, ranges)
    under_way = passes.find_running(blocks.begin_ns)
    under_way = np.where(blocks.before, -1, np.where(member >= 0, member, under_way))
    within, pass_index, end = under_way >= 0, np.maximum(under_way, 0), blocks.freed_ns
    next_ns = np.append(passes.first_ns, [FOREVER, FOREVER])[pass_index + 1]
    closed = np.append(passes.closed, False)[pass_index]
    backward_starts = passes.first_ns[passes.kind == BACKWARD]
    first_backward_ns = int(backward_starts[0]) if len(backward_starts) else FOREVER
    after = passes.first_ns[passes.first_ns > first_backward_ns]
    second_ns = int(after[0]) if len(after) else FOREVER
    forward, backward, optimizer = (
        _find_next_pass_start(passes, kind, pass_index) for kind in (FORWARD, BACKWARD, OPTIMIZER)
    )
    return Features(
        origin=origin,
        has_stack=has_stack,
        requested_bytes=blocks.requested_bytes,
        made_in=np.where(member >= 0, np.append(passes.kind, NONE)[pass_index], NONE),
        under_way=under_way,
        passes=passes,
        ends_in=np.append(passes.kind, NONE)[np.where(end == FOREVER, -1, passes.find_running(end))],
        stays=end == FOREVER,
        before=blocks.before,
        in_open_pass=within & (pass_index == len(passes) - 1) & ~np.append(passes.closed, False)[pass_index],
        outlives_pass=within & (end > np.append(passes.last_ns, FOREVER)[pass_index]),
        sees_backward=within & _lives_until(end, backward),
        sees_next_step=within & _lives_until(end, _find_next_step(passes, pass_index)),
        sees_optimizer=within & _lives_until(end - CLOCK_NS, optimizer),
        optimizer_is_next=within & (optimizer < forward),
        outlives_step=within & ((next_ns != FOREVER) | closed) & (end >= np.maximum(next_ns, 0)),
        is_standing=(end == FOREVER) | ((member < 0) & (end > _find_first_start(passes, blocks.begin_ns))),
        outlives_recompute=_find_outliving_recompute(blocks, origin, member),
        outlives_forward=_find_outliving_forward(blocks, passes, member),
        ends_in_first_backward=(end != FOREVER) & (end >= first_backward_ns) & (end <= second_ns),
        ends_after_backward=end >= first_backward_ns,
        has_backward=np.full(len(blocks), first_backward_ns != FOREVER),
    )


def _find_next_pass_start(passes: AllocationPasses, kind: int, pass_index: Int) -> Int:
    return (
        passes.find_next_starts(kind, pass_index)
        if len(passes.kind)
        else np.full(len(pass_index), FOREVER, dtype=np.int64)
    )


def _find_next_step(passes: AllocationPasses, pass_index: Int) -> Int:
    """Return, for each pass, the start of the next step's backward pass, or FOREVER."""
    if not len(passes):
        return np.full(len(pass_index), FOREVER, dtype=np.int64)
    own = passes.find_running(passes.find_next_starts(BACKWARD, pass_index))
    forward = passes.find_running(passes.find_next_starts(FORWARD, own))
    return passes.find_next_starts(BACKWARD, forward)


def _lives_until(end_ns: Int, time_ns: Int) -> Bool:
    """Mark the lifetimes that extend past a time; False if the time is FOREVER."""
    return (time_ns != FOREVER) & (end_ns > time_ns)


def _find_first_start(passes: AllocationPasses, time_ns: Int) -> Int:
    """Return the start of the first pass after each time, or FOREVER."""
    return np.append(passes.first_ns, FOREVER)[np.searchsorted(passes.first_ns, time_ns, side="right")]


def _find_outliving_forward(blocks: HeldBlocks, passes: AllocationPasses, member: Int) -> Bool:
    """Mark blocks live after their forward pass's last allocation, in a history without a backward pass.

    A forward pass begins where almost nothing of earlier passes is live. The last temporaries of a forward
    pass outlive it, too; only if it keeps many of its blocks can they be meant for a backward pass.
    """
    outlives = np.zeros(len(blocks), dtype=bool)
    rows = np.flatnonzero(member >= 0)
    if not len(rows) or bool((passes.kind == BACKWARD).any()):
        return outlives
    begin_ns, freed_ns, size = blocks.begin_ns[rows], blocks.freed_ns[rows], blocks.requested_bytes[rows]
    by_end = np.argsort(freed_ns, kind="stable")
    freed_bytes = np.concatenate([[0], np.cumsum(size[by_end])])
    live = np.cumsum(size) - size - freed_bytes[np.searchsorted(freed_ns[by_end], begin_ns, side="right")]
    most = live.max(initial=0)
    order = np.arange(len(rows))
    last_high = np.maximum.accumulate(np.where(live >= _HIGH_RATIO * most, order, -1))
    low = np.flatnonzero(live <= _VALLEY_RATIO * most)
    starts = low[np.unique(last_high[low], return_index=True)[1]]
    forward = np.searchsorted(starts, order, side="right") - 1
    kept = freed_ns > begin_ns[np.append(starts[1:], len(rows))[forward] - 1]
    kept_ratio = np.bincount(forward, weights=kept) / np.bincount(forward)
    outlives[rows] = kept & (kept_ratio >= _KEPT_RATIO)[forward]
    return outlives


def _find_outliving_recompute(blocks: HeldBlocks, origin: Int, member: Int) -> Bool:
    rows = (origin == Origin.RECOMPUTE) & (member >= 0)
    # The allocation time of the next block of a pass that is not in ``rows``, or FOREVER.
    others = blocks.begin_ns[np.flatnonzero((member >= 0) & ~rows)]
    following = np.append(others, FOREVER)[np.searchsorted(others, blocks.begin_ns, side="right")]
    return rows & (following != FOREVER) & (blocks.freed_ns > following)


def find_previous_blocks(blocks: HeldBlocks, features: Features) -> Int:
    """Return the same block's row in the previous step, for blocks of the open pass; -1 for other blocks."""
    twin = np.full(len(blocks), -1, dtype=np.int64)
    last = len(features.passes.kind) - 1
    same_kind = (
        np.flatnonzero(features.passes.kind[:-1] == features.passes.kind[-1:]) if last > 0 else np.zeros(0)
    )
    if not len(same_kind):
        return twin
    current_rows = np.flatnonzero(features.under_way == last)
    previous_rows = np.flatnonzero(features.under_way == int(same_kind[-1]))
    row_by_key = {
        key: row for key, row in zip(_make_keys(blocks, previous_rows), previous_rows.tolist(), strict=True)
    }
    twin[current_rows] = [row_by_key.get(key, -1) for key in _make_keys(blocks, current_rows)]
    return twin


def _make_keys(blocks: HeldBlocks, rows: Int) -> list[tuple[int, int, int]]:
    """Return each row's (size, stack, number of earlier equal rows), in allocation order."""
    counts: dict[tuple[int, int], int] = {}
    keys: list[tuple[int, int, int]] = []
    sizes, stacks = blocks.requested_bytes[rows].tolist(), blocks.stack[rows].tolist()
    for size, stack in zip(sizes, stacks, strict=True):
        count = counts[size, stack] = counts.get((size, stack), -1) + 1
        keys.append((size, stack, count))
    return keys


class TenantRule(Struct, frozen=True):
    """A rule; ``applies`` returns the mask of blocks that belong to ``tenant`` and its ``sub``."""

    name: str
    tenant: Tenant
    sub: str
    confidence: Confidence
    applies: Callable[[Features], Bool]


def _is_workspace(features: Features) -> Bool:
    called = features.made_by(Origin.FORWARD, Origin.FORWARD_NAME)
    size = (features.requested_bytes == WORKSPACE_BYTES) | (
        called & (features.requested_bytes == HOPPER_WORKSPACE_BYTES)
    )
    return features.stays & size & (called | features.made_by(Origin.BARE, Origin.BACKWARD))


def _is_reduced_shard(features: Features) -> Bool:
    reaches = features.sees_optimizer | (
        ~features.optimizer_is_next & features.outlives_pass & ~features.stays
    )
    return features.made_by(Origin.REDUCE) & reaches


def _is_made_in_backward(features: Features) -> Bool:
    return (features.made_in == BACKWARD) & ~features.made_by(Origin.RECOMPUTE)


def _is_gradient_without_optimizer(features: Features) -> Bool:
    """Mark blocks that outlive the backward pass: a fused optimizer's pass is invisible, as it allocates
    nothing.
    """
    ended = ~features.in_open_pass | ~features.stays
    return _is_made_in_backward(features) & ~features.optimizer_is_next & features.outlives_pass & ended


def _is_saved_in_running_backward(features: Features) -> Bool:
    running = features.passes.kind[-1:] == BACKWARD
    last = features.under_way == len(features.passes.kind) - 2
    return (
        (features.made_in == FORWARD) & features.sees_backward & features.stays & last & bool(running.any())
    )


def _is_kept_output(features: Features) -> Bool:
    """Mark outputs that the program holds until the next step or the end of the history."""
    kept = features.made_in == FORWARD
    return kept & features.sees_backward & ~(features.stays & features.sees_next_step)


def _is_saved_in_running_forward(features: Features) -> Bool:
    trains = bool((features.passes.kind == BACKWARD).any())
    return (features.made_in == FORWARD) & features.stays & features.in_open_pass & trains


TENANT_RULES: tuple[TenantRule, ...] = (
    # Workspaces by stack: cuBLAS has one per thread, and also runs on the backward thread.
    TenantRule("library_workspace", _TEMPORARY, "workspace", _HIGH, lambda f: f.made_by(Origin.WORKSPACE)),
    TenantRule("cublas_workspace", _TEMPORARY, "workspace", _MEDIUM, _is_workspace),
    TenantRule(
        "sharding_gather", _COMMUNICATION, "gathered_param", _HIGH, lambda f: f.made_by(Origin.GATHER)
    ),
    TenantRule("sharding_reduced_shard", _GRADIENTS, "shard", _MEDIUM, _is_reduced_shard),
    TenantRule(
        "sharding_reduce",
        _COMMUNICATION,
        "reduce_scatter",
        _MEDIUM,
        lambda f: f.made_by(Origin.REDUCE) & ~f.stays,
    ),
    TenantRule("ddp_bucket", _COMMUNICATION, "bucket", _MEDIUM, lambda f: f.made_by(Origin.BUCKET)),
    TenantRule("collective", _COMMUNICATION, "collective", _HIGH, lambda f: f.made_by(Origin.COLLECTIVE)),
    TenantRule(
        "optimizer_init",
        _STATE,
        "state",
        _HIGH,
        lambda f: f.made_by(Origin.OPTIMIZER_INIT) & (f.stays | f.outlives_step),
    ),
    TenantRule(
        "optimizer_long_lived", _STATE, "state", _HIGH, lambda f: (f.made_in == OPTIMIZER) & f.outlives_step
    ),
    TenantRule(
        "optimizer_from_before",
        _STATE,
        "state",
        _MEDIUM,
        lambda f: f.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_CALL) & f.before & f.stays,
    ),
    TenantRule(
        "optimizer_temporary",
        _TEMPORARY,
        "optimizer",
        _HIGH,
        lambda f: (f.made_in == OPTIMIZER) & ~f.stays & ~f.outlives_step,
    ),
    TenantRule("clip_or_scale", _TEMPORARY, "clip", _HIGH, lambda f: f.made_by(Origin.CLIP) & ~f.stays),
    TenantRule(
        "sharding_parameter", _PARAMETERS, "shard", _HIGH, lambda f: f.made_by(Origin.SHARD) & f.is_standing
    ),
    TenantRule(
        "module_setup", _PARAMETERS, "weight", _HIGH, lambda f: f.made_by(Origin.SETUP) & f.is_standing
    ),
    TenantRule(
        "constructor", _PARAMETERS, "weight", _LOW, lambda f: f.made_by(Origin.CONSTRUCTOR) & f.is_standing
    ),
    TenantRule(
        "autocast_saved",
        _ACTIVATIONS,
        CAST,
        _HIGH,
        lambda f: f.made_by(Origin.CAST) & f.sees_backward & (f.ends_in == BACKWARD),
    ),
    TenantRule("autocast", _TEMPORARY, CAST, _HIGH, lambda f: f.made_by(Origin.CAST) & ~f.stays),
    TenantRule(
        "recomputed",
        _ACTIVATIONS,
        "recomputed",
        _HIGH,
        lambda f: f.made_by(Origin.RECOMPUTE) & f.outlives_recompute & ~f.stays,
    ),
    TenantRule(
        "recomputed_at_the_end",
        _ACTIVATIONS,
        "recomputed",
        _LOW,
        lambda f: f.made_by(Origin.RECOMPUTE) & f.stays & f.in_open_pass,
    ),
    TenantRule(
        "recompute_temporary",
        _TEMPORARY,
        "op_workspace",
        _HIGH,
        lambda f: f.made_by(Origin.RECOMPUTE) & ~f.outlives_recompute & ~f.stays,
    ),
    TenantRule(
        "backward_until_optimizer",
        _GRADIENTS,
        "grad",
        _HIGH,
        lambda f: _is_made_in_backward(f) & f.sees_optimizer,
    ),
    TenantRule("backward_outlived", _GRADIENTS, "grad", _MEDIUM, _is_gradient_without_optimizer),
    TenantRule(
        "backward_temporary", _TEMPORARY, "act_grad", _HIGH, lambda f: _is_made_in_backward(f) & ~f.stays
    ),
    TenantRule(
        "forward_until_backward",
        _ACTIVATIONS,
        "saved",
        _HIGH,
        lambda f: f.made_by(Origin.FORWARD) & f.sees_backward & (f.ends_in == BACKWARD),
    ),
    TenantRule(
        "forward_name_until_backward",
        _ACTIVATIONS,
        "saved",
        _MEDIUM,
        lambda f: (f.made_in == FORWARD) & f.sees_backward & (f.ends_in == BACKWARD),
    ),
    TenantRule("forward_in_running_backward", _ACTIVATIONS, "saved", _MEDIUM, _is_saved_in_running_backward),
    TenantRule("forward_output_kept", _ACTIVATIONS, "kept", _LOW, _is_kept_output),
    # Blocks that a forward pass keeps to its end, in a history without a backward pass.
    TenantRule(
        "forward_keeps",
        _ACTIVATIONS,
        "saved",
        _LOW,
        lambda f: f.outlives_forward & ~f.made_by(Origin.CAST) & ~f.stays,
    ),
    TenantRule(
        "forward_only_temporary",
        _TEMPORARY,
        "op_workspace",
        _MEDIUM,
        lambda f: (f.made_in == FORWARD) & ~f.has_backward & ~f.stays,
    ),
    TenantRule(
        "forward_temporary",
        _TEMPORARY,
        "op_workspace",
        _HIGH,
        lambda f: (f.made_in == FORWARD) & ~f.sees_backward & ~f.stays,
    ),
)
#: Last resort for histories that begin or end within a step.
LAST_RESORT_RULES: tuple[TenantRule, ...] = (
    # Older blocks freed in the history's first backward pass.
    TenantRule(
        "saved_before",
        _ACTIVATIONS,
        "saved",
        _MEDIUM,
        lambda f: f.before & (f.ends_in == BACKWARD) & f.ends_in_first_backward,
    ),
    # Older blocks freed in the history's first forward pass.
    TenantRule(
        "temporary_before",
        _TEMPORARY,
        "op_workspace",
        _LOW,
        lambda f: f.before & (f.ends_in == FORWARD) & ~f.ends_after_backward,
    ),
    TenantRule("forward_at_the_end", _ACTIVATIONS, "saved", _LOW, _is_saved_in_running_forward),
    TenantRule(
        "forward_only_kept",
        _ACTIVATIONS,
        "kept",
        _LOW,
        lambda f: (f.made_in == FORWARD) & ~f.has_backward & f.stays,
    ),
    TenantRule("optimizer_at_the_end", _STATE, "state", _LOW, lambda f: (f.made_in == OPTIMIZER) & f.stays),
)


def find_first_rule(rules: tuple[TenantRule, ...], features: Features) -> Int:
    """Return the index of the first rule that applies to each block; -1 if none does."""
    rule_index = np.full(len(features.origin), -1, dtype=np.int64)
    for index, rule in reversed(list(enumerate(rules))):
        rule_index[rule.applies(features)] = index
    return rule_index
