"""Name the tenant of every block in a history: by the program's tag, else by the first rule that applies.

To add a rule: write a function that returns a mask over the blocks, and add it to ``TENANT_RULES`` with its
tenant and confidence. HIGH: the stack names the owner, or the lifetime within the step leaves no other.
MEDIUM: the usual case, with a known exception. LOW: the best guess, because the history ends too early. Tags
are written with ``torch.cuda.memory._set_memory_metadata("zprof:<tenant>[/<sub>]")``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.block_features import (
    BACKWARD,
    FORWARD,
    Features,
    compute_features,
    find_previous_blocks,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.stack_origins import Origin
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED, Bool, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Basis
from zprof.model.tenants import PRECEDENCE, Tenant

#: Size of the workspace that torch gives cuBLAS, once per thread and stream, and keeps:
#: ``CUBLAS_WORKSPACE_CONFIG`` :4096:2:16:8, and 32 MiB on Hopper (``CUDABlas.cpp``).
_WORKSPACE_BYTES = 8_519_680
_HOPPER_WORKSPACE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class TenantRule:
    """A rule; ``applies`` returns the mask of blocks that belong to ``tenant``, as ``sub``."""

    name: str
    tenant: Tenant
    sub: str
    confidence: Confidence
    applies: Callable[[Features], Bool]


def _workspace(seen: Features) -> Bool:
    called = seen.made_by(Origin.FORWARD, Origin.FORWARD_NAME)
    size = (seen.requested_bytes == _WORKSPACE_BYTES) | (
        called & (seen.requested_bytes == _HOPPER_WORKSPACE_BYTES)
    )
    mask: Bool = seen.stays & size & (called | seen.made_by(Origin.BARE, Origin.BACKWARD))
    return mask


def _stated_workspace(seen: Features) -> Bool:
    """Use the stack: cuBLAS is also called on the backward thread, and keeps a workspace per thread."""
    return seen.made_by(Origin.WORKSPACE)


def _gathered(seen: Features) -> Bool:
    return seen.made_by(Origin.GATHER)


def _reduced_shard(seen: Features) -> Bool:
    reaches = seen.sees_optimizer | (~seen.optimizer_is_next & seen.outlives_pass & ~seen.stays)
    return seen.made_by(Origin.REDUCE) & reaches


def _reduce_buffer(seen: Features) -> Bool:
    return seen.made_by(Origin.REDUCE) & ~seen.stays


def _bucket(seen: Features) -> Bool:
    return seen.made_by(Origin.BUCKET)


def _collective(seen: Features) -> Bool:
    return seen.made_by(Origin.COLLECTIVE)


def _initialised_state(seen: Features) -> Bool:
    return seen.made_by(Origin.OPTIMIZER_INIT) & (seen.stays | seen.sees_forward)


def _long_lived_state(seen: Features) -> Bool:
    return seen.made_by(Origin.OPTIMIZER) & seen.sees_forward


def _state_from_before(seen: Features) -> Bool:
    return seen.made_by(Origin.OPTIMIZER) & seen.before & seen.stays


def _optimizer_temporary(seen: Features) -> Bool:
    return seen.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_INIT) & ~seen.stays & ~seen.sees_forward


def _clip(seen: Features) -> Bool:
    return seen.made_by(Origin.CLIP) & ~seen.stays


def _shard(seen: Features) -> Bool:
    return seen.made_by(Origin.SHARD) & seen.stays


def _module_setup(seen: Features) -> Bool:
    return seen.made_by(Origin.SETUP) & seen.stays


def _constructor(seen: Features) -> Bool:
    return seen.made_by(Origin.CONSTRUCTOR) & seen.stays


def _recomputed(seen: Features) -> Bool:
    return seen.made_by(Origin.RECOMPUTE) & seen.outlives_recompute & ~seen.stays


def _recomputed_at_the_end(seen: Features) -> Bool:
    return seen.made_by(Origin.RECOMPUTE) & seen.stays & seen.in_open_pass


def _recompute_temporary(seen: Features) -> Bool:
    return seen.made_by(Origin.RECOMPUTE) & ~seen.outlives_recompute & ~seen.stays


def _made_in_backward(seen: Features) -> Bool:
    made: Bool = (seen.made_in == BACKWARD) & ~seen.made_by(Origin.RECOMPUTE)
    return made


def _gradient(seen: Features) -> Bool:
    return _made_in_backward(seen) & seen.sees_optimizer


def _gradient_without_optimizer(seen: Features) -> Bool:
    """Mark what outlives the backward: a fused optimizer allocates nothing, so its pass is not seen."""
    ended = ~seen.in_open_pass | ~seen.stays
    return _made_in_backward(seen) & ~seen.optimizer_is_next & seen.outlives_pass & ended


def _backward_temporary(seen: Features) -> Bool:
    return _made_in_backward(seen) & ~seen.stays


def _saved(seen: Features) -> Bool:
    return seen.made_by(Origin.FORWARD) & seen.sees_backward & seen.dies_in_backward


def _saved_by_name(seen: Features) -> Bool:
    return seen.made_by(Origin.FORWARD_NAME) & seen.sees_backward & seen.dies_in_backward


def _saved_in_running_backward(seen: Features) -> Bool:
    running = seen.passes.kind[-1:] == BACKWARD
    last = seen.under_way == len(seen.passes.kind) - 2
    mask: Bool = (seen.made_in == FORWARD) & seen.sees_backward & seen.stays & last & bool(running.any())
    return mask


def _kept_output(seen: Features) -> Bool:
    mask: Bool = (seen.made_in == FORWARD) & seen.sees_backward & ~seen.stays
    return mask


def _forward_temporary(seen: Features) -> Bool:
    mask: Bool = (seen.made_in == FORWARD) & ~seen.sees_backward & ~seen.stays
    return mask


def _saved_in_running_forward(seen: Features) -> Bool:
    trains = bool((seen.passes.kind == BACKWARD).any())
    mask: Bool = (seen.made_in == FORWARD) & seen.stays & seen.in_open_pass & trains
    return mask


_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS, _STATE = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
_ACTIVATIONS, _TEMPORARY = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS
_COMMUNICATION = Tenant.COMMUNICATION_BUFFERS

TENANT_RULES: tuple[TenantRule, ...] = (
    TenantRule("library_workspace", _TEMPORARY, "workspace", _HIGH, _stated_workspace),
    TenantRule("cublas_workspace", _TEMPORARY, "workspace", _MEDIUM, _workspace),
    TenantRule("sharding_gather", _COMMUNICATION, "gathered_param", _HIGH, _gathered),
    TenantRule("sharding_reduced_shard", _GRADIENTS, "shard", _MEDIUM, _reduced_shard),
    TenantRule("sharding_reduce", _COMMUNICATION, "reduce_scatter", _HIGH, _reduce_buffer),
    TenantRule("ddp_bucket", _COMMUNICATION, "bucket", _MEDIUM, _bucket),
    TenantRule("collective", _COMMUNICATION, "collective", _HIGH, _collective),
    TenantRule("optimizer_init", _STATE, "state", _HIGH, _initialised_state),
    TenantRule("optimizer_long_lived", _STATE, "state", _HIGH, _long_lived_state),
    TenantRule("optimizer_from_before", _STATE, "state", _MEDIUM, _state_from_before),
    TenantRule("optimizer_temporary", _TEMPORARY, "optimizer", _HIGH, _optimizer_temporary),
    TenantRule("clip_or_scale", _TEMPORARY, "clip", _HIGH, _clip),
    TenantRule("sharding_parameter", _PARAMETERS, "shard", _HIGH, _shard),
    TenantRule("module_setup", _PARAMETERS, "weight", _HIGH, _module_setup),
    TenantRule("constructor", _PARAMETERS, "weight", _LOW, _constructor),
    TenantRule("recomputed", _ACTIVATIONS, "recomputed", _HIGH, _recomputed),
    TenantRule("recomputed_at_the_end", _ACTIVATIONS, "recomputed", _LOW, _recomputed_at_the_end),
    TenantRule("recompute_temporary", _TEMPORARY, "op_workspace", _HIGH, _recompute_temporary),
    TenantRule("backward_until_optimizer", _GRADIENTS, "grad", _HIGH, _gradient),
    TenantRule("backward_outlived", _GRADIENTS, "grad", _MEDIUM, _gradient_without_optimizer),
    TenantRule("backward_temporary", _TEMPORARY, "act_grad", _HIGH, _backward_temporary),
    TenantRule("forward_until_backward", _ACTIVATIONS, "saved", _HIGH, _saved),
    TenantRule("forward_name_until_backward", _ACTIVATIONS, "saved", _MEDIUM, _saved_by_name),
    TenantRule("forward_in_running_backward", _ACTIVATIONS, "saved", _MEDIUM, _saved_in_running_backward),
    TenantRule("forward_output_kept", _ACTIVATIONS, "kept", _LOW, _kept_output),
    TenantRule("forward_temporary", _TEMPORARY, "op_workspace", _HIGH, _forward_temporary),
)

#: For histories that end within a pass; tried after the rule of the same block in the previous step.
LAST_RESORT_RULES: tuple[TenantRule, ...] = (
    TenantRule("forward_at_the_end", _ACTIVATIONS, "saved", _LOW, _saved_in_running_forward),
)


def find_first_rule(
    rules: tuple[TenantRule, ...], seen: Features
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the index of the first rule that applies to each block; -1 if none does."""
    found = np.full(len(seen.origin), -1, dtype=np.int64)
    for index, rule in reversed(list(enumerate(rules))):
        found[rule.applies(seen)] = index
    return found


#: Rules by number: the normal ones, then those of last resort.
_ALL_RULES: tuple[TenantRule, ...] = (*TENANT_RULES, *LAST_RESORT_RULES)
_BY_TAG = -2
_NO_RULE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTenants:
    """Tenants of blocks; ``tenant`` is a position in PRECEDENCE or UNTAGGED; ``sub`` indexes ``subs``.

    ``rule`` is the number of the rule, -1 if none applied, -2 if the program's tag decided. ``by_twin``: the
    rule was found for the same block of the previous step.
    """

    tenant: Int
    sub: Int
    subs: tuple[str, ...]
    rule: Int
    by_twin: Int

    def basis_of(self, row: int) -> Basis:
        """Return the basis of one block's tenant."""
        rule = int(self.rule[row])
        return Basis.TAGGED if rule == _BY_TAG else Basis.UNKNOWN if rule == _NO_RULE else Basis.RULE

    def basis_bytes(self, rows: Int, sizes: Int) -> dict[Basis, int]:
        """Return the bytes of some blocks by the basis of their tenants."""
        rule, size = self.rule[rows], sizes[rows]
        return {
            Basis.TAGGED: int(size[rule == _BY_TAG].sum()),
            Basis.RULE: int(size[rule >= 0].sum()),
            Basis.UNKNOWN: int(size[rule == _NO_RULE].sum()),
        }

    def confidence_bytes(self, rows: Int, sizes: Int) -> dict[Confidence, int]:
        """Return the bytes that rules name, by confidence; a rule of a twin counts one level lower."""
        held = dict.fromkeys(Confidence, 0)
        for number, rule in enumerate(_ALL_RULES):
            mine = rows[self.rule[rows] == number]
            twins = mine[self.by_twin[mine] != 0]
            held[rule.confidence] += int(sizes[mine].sum() - sizes[twins].sum())
            held[_lower_confidence(rule.confidence)] += int(sizes[twins].sum())
        return held

    def tenant_name(self, row: int) -> str:
        """Return the tenant of a block; ``untagged`` if it has none."""
        code = int(self.tenant[row])
        return "untagged" if code == UNTAGGED else PRECEDENCE[code].value


def name_tenants(blocks: HeldBlocks, origin: Int) -> BlockTenants:
    """Name the tenant of every block; ``origin`` is that of each block's stack."""
    seen = compute_features(blocks, origin)
    rule, by_twin = _apply_rules(blocks, seen)
    subs: dict[str, int] = {"": 0}
    tenants = np.array([TENANT_CODES[each.tenant] for each in _ALL_RULES] + [UNTAGGED], dtype=np.int64)
    sub_codes = np.array([subs.setdefault(each.sub, len(subs)) for each in _ALL_RULES] + [0], dtype=np.int64)
    tenant, sub = tenants[rule], sub_codes[rule]
    for number, text in enumerate(blocks.tags):
        claim = parse_tag(text)
        if claim is not None:
            mine = blocks.tag == number
            tenant[mine], sub[mine] = TENANT_CODES[claim[0]], subs.setdefault(claim[1], len(subs))
            rule[mine], by_twin[mine] = _BY_TAG, 0
    return BlockTenants(tenant=tenant, sub=sub, subs=tuple(subs), rule=rule, by_twin=by_twin)


def _apply_rules(blocks: HeldBlocks, seen: Features) -> tuple[Int, Int]:
    """Return the number of each block's rule, and whether it is that of its twin in the previous step."""
    rule = find_first_rule(TENANT_RULES, seen)
    open_rows = np.flatnonzero((rule == _NO_RULE) & seen.in_open_pass & seen.stays)
    twin = find_previous_blocks(blocks, seen)[open_rows] if len(open_rows) else open_rows
    by_twin = np.zeros(len(rule), dtype=np.int64)
    known = twin >= 0
    rule[open_rows[known]] = rule[twin[known]]
    by_twin[open_rows[known]] = rule[open_rows[known]] >= 0
    last = find_first_rule(LAST_RESORT_RULES, seen)
    rest = (rule == _NO_RULE) & (last >= 0)
    rule[rest] = last[rest] + len(TENANT_RULES)
    return rule, by_twin


def _lower_confidence(confidence: Confidence) -> Confidence:
    return Confidence.MEDIUM if confidence is Confidence.HIGH else Confidence.LOW


def sum_tenant_bytes(tenant: Int, sizes: Int) -> tuple[dict[Tenant, int], int]:
    """Return the bytes of each tenant, and the untagged bytes."""
    held = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(held, tenant, sizes)
    return {owner: int(held[code]) for owner, code in TENANT_CODES.items()}, int(held[UNTAGGED])


TAG_PREFIX = "zprof:"
_MAX_SUB = 40


def parse_tag(text: str) -> tuple[Tenant, str] | None:
    """Return the tenant and sub that a tag names, or None."""
    if not text.startswith(TAG_PREFIX):
        return None
    tenant, _, sub = text[len(TAG_PREFIX) :].partition("/")
    try:
        return Tenant(tenant), sub[:_MAX_SUB]
    except ValueError:
        return None
