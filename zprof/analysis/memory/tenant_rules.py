"""Assign a tenant to every block in a history: from the program's tag, else from the first rule that applies.

To add a rule: write a function that returns a mask over the blocks, and add it to ``TENANT_RULES`` with its
tenant and confidence. HIGH: the stack identifies the owner, or the lifetime within the step leaves no other.
MEDIUM: the usual case, with a known exception. LOW: a best guess, because the history ends too early. Tags
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


def _is_workspace(features: Features) -> Bool:
    called = features.made_by(Origin.FORWARD, Origin.FORWARD_NAME)
    size = (features.requested_bytes == _WORKSPACE_BYTES) | (
        called & (features.requested_bytes == _HOPPER_WORKSPACE_BYTES)
    )
    mask: Bool = features.stays & size & (called | features.made_by(Origin.BARE, Origin.BACKWARD))
    return mask


def _is_library_workspace(features: Features) -> Bool:
    """Mark workspaces by their stack: cuBLAS has one per thread, and also runs on the backward thread."""
    return features.made_by(Origin.WORKSPACE)


def _is_gathered_param(features: Features) -> Bool:
    return features.made_by(Origin.GATHER)


def _is_reduced_shard(features: Features) -> Bool:
    reaches = features.sees_optimizer | (
        ~features.optimizer_is_next & features.outlives_pass & ~features.stays
    )
    return features.made_by(Origin.REDUCE) & reaches


def _is_reduce_buffer(features: Features) -> Bool:
    return features.made_by(Origin.REDUCE) & ~features.stays


def _is_bucket(features: Features) -> Bool:
    return features.made_by(Origin.BUCKET)


def _is_collective(features: Features) -> Bool:
    return features.made_by(Origin.COLLECTIVE)


def _is_initialized_state(features: Features) -> Bool:
    return features.made_by(Origin.OPTIMIZER_INIT) & (features.stays | features.sees_forward)


def _is_long_lived_state(features: Features) -> Bool:
    return features.made_by(Origin.OPTIMIZER) & features.sees_forward


def _is_state_from_before(features: Features) -> Bool:
    return features.made_by(Origin.OPTIMIZER) & features.before & features.stays


def _is_optimizer_temporary(features: Features) -> Bool:
    return (
        features.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_INIT) & ~features.stays & ~features.sees_forward
    )


def _is_clip(features: Features) -> Bool:
    return features.made_by(Origin.CLIP) & ~features.stays


def _is_shard(features: Features) -> Bool:
    return features.made_by(Origin.SHARD) & features.stays


def _is_module_setup(features: Features) -> Bool:
    return features.made_by(Origin.SETUP) & features.stays


def _is_constructor(features: Features) -> Bool:
    return features.made_by(Origin.CONSTRUCTOR) & features.stays


def _is_recomputed(features: Features) -> Bool:
    return features.made_by(Origin.RECOMPUTE) & features.outlives_recompute & ~features.stays


def _is_recomputed_at_end(features: Features) -> Bool:
    return features.made_by(Origin.RECOMPUTE) & features.stays & features.in_open_pass


def _is_recompute_temporary(features: Features) -> Bool:
    return features.made_by(Origin.RECOMPUTE) & ~features.outlives_recompute & ~features.stays


def _is_made_in_backward(features: Features) -> Bool:
    made: Bool = (features.made_in == BACKWARD) & ~features.made_by(Origin.RECOMPUTE)
    return made


def _is_gradient(features: Features) -> Bool:
    return _is_made_in_backward(features) & features.sees_optimizer


def _is_gradient_without_optimizer(features: Features) -> Bool:
    """Mark blocks that outlive the backward: a fused optimizer allocates nothing, so its pass is unseen."""
    ended = ~features.in_open_pass | ~features.stays
    return _is_made_in_backward(features) & ~features.optimizer_is_next & features.outlives_pass & ended


def _is_backward_temporary(features: Features) -> Bool:
    return _is_made_in_backward(features) & ~features.stays


def _is_saved(features: Features) -> Bool:
    return features.made_by(Origin.FORWARD) & features.sees_backward & features.dies_in_backward


def _is_saved_by_name(features: Features) -> Bool:
    return features.made_by(Origin.FORWARD_NAME) & features.sees_backward & features.dies_in_backward


def _is_saved_in_running_backward(features: Features) -> Bool:
    running = features.passes.kind[-1:] == BACKWARD
    last = features.under_way == len(features.passes.kind) - 2
    mask: Bool = (
        (features.made_in == FORWARD) & features.sees_backward & features.stays & last & bool(running.any())
    )
    return mask


def _is_kept_output(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & features.sees_backward & ~features.stays
    return mask


def _is_forward_temporary(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & ~features.sees_backward & ~features.stays
    return mask


def _is_saved_in_running_forward(features: Features) -> Bool:
    trains = bool((features.passes.kind == BACKWARD).any())
    mask: Bool = (features.made_in == FORWARD) & features.stays & features.in_open_pass & trains
    return mask


_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS, _STATE = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
_ACTIVATIONS, _TEMPORARY = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS
_COMMUNICATION = Tenant.COMMUNICATION_BUFFERS

TENANT_RULES: tuple[TenantRule, ...] = (
    TenantRule("library_workspace", _TEMPORARY, "workspace", _HIGH, _is_library_workspace),
    TenantRule("cublas_workspace", _TEMPORARY, "workspace", _MEDIUM, _is_workspace),
    TenantRule("sharding_gather", _COMMUNICATION, "gathered_param", _HIGH, _is_gathered_param),
    TenantRule("sharding_reduced_shard", _GRADIENTS, "shard", _MEDIUM, _is_reduced_shard),
    TenantRule("sharding_reduce", _COMMUNICATION, "reduce_scatter", _HIGH, _is_reduce_buffer),
    TenantRule("ddp_bucket", _COMMUNICATION, "bucket", _MEDIUM, _is_bucket),
    TenantRule("collective", _COMMUNICATION, "collective", _HIGH, _is_collective),
    TenantRule("optimizer_init", _STATE, "state", _HIGH, _is_initialized_state),
    TenantRule("optimizer_long_lived", _STATE, "state", _HIGH, _is_long_lived_state),
    TenantRule("optimizer_from_before", _STATE, "state", _MEDIUM, _is_state_from_before),
    TenantRule("optimizer_temporary", _TEMPORARY, "optimizer", _HIGH, _is_optimizer_temporary),
    TenantRule("clip_or_scale", _TEMPORARY, "clip", _HIGH, _is_clip),
    TenantRule("sharding_parameter", _PARAMETERS, "shard", _HIGH, _is_shard),
    TenantRule("module_setup", _PARAMETERS, "weight", _HIGH, _is_module_setup),
    TenantRule("constructor", _PARAMETERS, "weight", _LOW, _is_constructor),
    TenantRule("recomputed", _ACTIVATIONS, "recomputed", _HIGH, _is_recomputed),
    TenantRule("recomputed_at_the_end", _ACTIVATIONS, "recomputed", _LOW, _is_recomputed_at_end),
    TenantRule("recompute_temporary", _TEMPORARY, "op_workspace", _HIGH, _is_recompute_temporary),
    TenantRule("backward_until_optimizer", _GRADIENTS, "grad", _HIGH, _is_gradient),
    TenantRule("backward_outlived", _GRADIENTS, "grad", _MEDIUM, _is_gradient_without_optimizer),
    TenantRule("backward_temporary", _TEMPORARY, "act_grad", _HIGH, _is_backward_temporary),
    TenantRule("forward_until_backward", _ACTIVATIONS, "saved", _HIGH, _is_saved),
    TenantRule("forward_name_until_backward", _ACTIVATIONS, "saved", _MEDIUM, _is_saved_by_name),
    TenantRule("forward_in_running_backward", _ACTIVATIONS, "saved", _MEDIUM, _is_saved_in_running_backward),
    TenantRule("forward_output_kept", _ACTIVATIONS, "kept", _LOW, _is_kept_output),
    TenantRule("forward_temporary", _TEMPORARY, "op_workspace", _HIGH, _is_forward_temporary),
)

#: For histories that end within a pass; used after the rule of the same block in the previous step.
LAST_RESORT_RULES: tuple[TenantRule, ...] = (
    TenantRule("forward_at_the_end", _ACTIVATIONS, "saved", _LOW, _is_saved_in_running_forward),
)


def find_first_rule(
    rules: tuple[TenantRule, ...], features: Features
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the index of the first rule that applies to each block; -1 if none does."""
    rule_index = np.full(len(features.origin), -1, dtype=np.int64)
    for index, rule in reversed(list(enumerate(rules))):
        rule_index[rule.applies(features)] = index
    return rule_index


#: Rules by number: the normal rules, then the last-resort rules.
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

    def get_basis(self, row: int) -> Basis:
        """Return the basis of one block's tenant."""
        rule = int(self.rule[row])
        return Basis.TAGGED if rule == _BY_TAG else Basis.UNKNOWN if rule == _NO_RULE else Basis.RULE

    def sum_basis_bytes(self, rows: Int, sizes: Int) -> dict[Basis, int]:
        """Return the bytes of some blocks by the basis of their tenants."""
        rule, size = self.rule[rows], sizes[rows]
        return {
            Basis.TAGGED: int(size[rule == _BY_TAG].sum()),
            Basis.RULE: int(size[rule >= 0].sum()),
            Basis.UNKNOWN: int(size[rule == _NO_RULE].sum()),
        }

    def sum_confidence_bytes(self, rows: Int, sizes: Int) -> dict[Confidence, int]:
        """Return the bytes assigned by rules, by confidence; a rule of a twin counts one level lower."""
        size_by_confidence = dict.fromkeys(Confidence, 0)
        for number, rule in enumerate(_ALL_RULES):
            rule_rows = rows[self.rule[rows] == number]
            twins = rule_rows[self.by_twin[rule_rows] != 0]
            size_by_confidence[rule.confidence] += int(sizes[rule_rows].sum() - sizes[twins].sum())
            size_by_confidence[_lower_confidence(rule.confidence)] += int(sizes[twins].sum())
        return size_by_confidence

    def tenant_name(self, row: int) -> str:
        """Return the tenant of a block; ``untagged`` if it has none."""
        code = int(self.tenant[row])
        return "untagged" if code == UNTAGGED else PRECEDENCE[code].value


def assign_tenants(blocks: HeldBlocks, origin: Int) -> BlockTenants:
    """Assign a tenant to every block; ``origin``: the origin of each block's stack."""
    features = compute_features(blocks, origin)
    rule, by_twin = _apply_rules(blocks, features)
    subs: dict[str, int] = {"": 0}
    tenants = np.array(
        [TENANT_CODES[rule_entry.tenant] for rule_entry in _ALL_RULES] + [UNTAGGED], dtype=np.int64
    )
    sub_codes = np.array(
        [subs.setdefault(rule_entry.sub, len(subs)) for rule_entry in _ALL_RULES] + [0], dtype=np.int64
    )
    tenant, sub = tenants[rule], sub_codes[rule]
    for number, text in enumerate(blocks.tags):
        claim = parse_tag(text)
        if claim is not None:
            has_tag = blocks.tag == number
            tenant[has_tag], sub[has_tag] = TENANT_CODES[claim[0]], subs.setdefault(claim[1], len(subs))
            rule[has_tag], by_twin[has_tag] = _BY_TAG, 0
    return BlockTenants(tenant=tenant, sub=sub, subs=tuple(subs), rule=rule, by_twin=by_twin)


def _apply_rules(blocks: HeldBlocks, features: Features) -> tuple[Int, Int]:
    """Return each block's rule number, and a mask of the rules taken from its twin in the previous step."""
    rule = find_first_rule(TENANT_RULES, features)
    open_rows = np.flatnonzero((rule == _NO_RULE) & features.in_open_pass & features.stays)
    twin = find_previous_blocks(blocks, features)[open_rows] if len(open_rows) else open_rows
    by_twin = np.zeros(len(rule), dtype=np.int64)
    known = twin >= 0
    rule[open_rows[known]] = rule[twin[known]]
    by_twin[open_rows[known]] = rule[open_rows[known]] >= 0
    last = find_first_rule(LAST_RESORT_RULES, features)
    rest = (rule == _NO_RULE) & (last >= 0)
    rule[rest] = last[rest] + len(TENANT_RULES)
    return rule, by_twin


def _lower_confidence(confidence: Confidence) -> Confidence:
    return Confidence.MEDIUM if confidence is Confidence.HIGH else Confidence.LOW


def sum_tenant_bytes(tenant: Int, sizes: Int) -> tuple[dict[Tenant, int], int]:
    """Return the bytes of each tenant, and the untagged bytes."""
    bytes_by_code = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(bytes_by_code, tenant, sizes)
    return {owner: int(bytes_by_code[code]) for owner, code in TENANT_CODES.items()}, int(
        bytes_by_code[UNTAGGED]
    )


TAG_PREFIX = "zprof:"
_MAX_SUB = 40


def parse_tag(text: str) -> tuple[Tenant, str] | None:
    """Return the tenant and sub of a tag; None if it has no tenant."""
    if not text.startswith(TAG_PREFIX):
        return None
    tenant, _, sub = text[len(TAG_PREFIX) :].partition("/")
    try:
        return Tenant(tenant), sub[:_MAX_SUB]
    except ValueError:
        return None
