"""Find the tenant of a block by the first rule that applies to its stack and its lifetime.

To add a rule: write a function that returns a mask over the blocks, and add it to ``TENANT_RULES`` with its
tenant and confidence. HIGH: the stack identifies the owner, or the lifetime within the step leaves no other.
MEDIUM: the usual case, with a known exception. LOW: a best guess, because the history ends too early.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.attribution.features import Features
from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER
from zprof.analysis.memory.tables import Bool, Int
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

#: Size of the workspace that torch gives cuBLAS, once per thread and stream, and keeps:
#: ``CUBLAS_WORKSPACE_CONFIG`` :4096:2:16:8, and 32 MiB on Hopper (``CUDABlas.cpp``).
WORKSPACE_BYTES = 8_519_680
HOPPER_WORKSPACE_BYTES = 32 << 20
_HIGH, _MEDIUM, _LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
_PARAMETERS, _GRADIENTS, _STATE = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
_ACTIVATIONS, _TEMPORARY = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS
_COMMUNICATION = Tenant.COMMUNICATION_BUFFERS
CAST = "cast"


class TenantRule(Struct, frozen=True):
    """A rule; ``applies`` returns the mask of blocks that belong to ``tenant``, as ``sub``."""

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
    return features.made_by(Origin.OPTIMIZER_INIT) & (features.stays | features.outlives_step)


def _is_long_lived_state(features: Features) -> Bool:
    mask: Bool = (features.made_in == OPTIMIZER) & features.outlives_step
    return mask


def _is_state_from_before(features: Features) -> Bool:
    return features.made_by(Origin.OPTIMIZER, Origin.OPTIMIZER_CALL) & features.before & features.stays


def _is_optimizer_temporary(features: Features) -> Bool:
    mask: Bool = (features.made_in == OPTIMIZER) & ~features.stays & ~features.outlives_step
    return mask


def _is_clip(features: Features) -> Bool:
    return features.made_by(Origin.CLIP) & ~features.stays


def _is_shard(features: Features) -> Bool:
    return features.made_by(Origin.SHARD) & features.is_standing


def _is_module_setup(features: Features) -> Bool:
    return features.made_by(Origin.SETUP) & features.is_standing


def _is_constructor(features: Features) -> Bool:
    return features.made_by(Origin.CONSTRUCTOR) & features.is_standing


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
    mask: Bool = features.made_by(Origin.FORWARD) & features.sees_backward & (features.ends_in == BACKWARD)
    return mask


def _is_saved_by_name(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & features.sees_backward & (features.ends_in == BACKWARD)
    return mask


def _is_saved_cast(features: Features) -> Bool:
    mask: Bool = features.made_by(Origin.CAST) & features.sees_backward & (features.ends_in == BACKWARD)
    return mask


def _is_cast(features: Features) -> Bool:
    mask: Bool = features.made_by(Origin.CAST) & ~features.stays
    return mask


def _is_saved_before(features: Features) -> Bool:
    """Mark older blocks that end in the history's first backward."""
    mask: Bool = features.before & (features.ends_in == BACKWARD) & features.ends_in_first_backward
    return mask


def _is_temporary_before(features: Features) -> Bool:
    """Mark older blocks that end in the history's first forward."""
    mask: Bool = features.before & (features.ends_in == FORWARD) & ~features.ends_after_backward
    return mask


def _is_saved_in_running_backward(features: Features) -> Bool:
    running = features.passes.kind[-1:] == BACKWARD
    last = features.under_way == len(features.passes.kind) - 2
    mask: Bool = (
        (features.made_in == FORWARD) & features.sees_backward & features.stays & last & bool(running.any())
    )
    return mask


def _is_kept_output(features: Features) -> Bool:
    """Mark outputs that the program still refers to: until the next step, or the end of the history."""
    kept = features.made_in == FORWARD
    mask: Bool = kept & features.sees_backward & ~(features.stays & features.sees_next_step)
    return mask


def _is_kept_for_a_backward(features: Features) -> Bool:
    """Mark what a forward keeps to its end in a history without a backward."""
    mask: Bool = features.outlives_forward & ~features.made_by(Origin.CAST) & ~features.stays
    return mask


def _is_temporary_without_backward(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & ~features.has_backward & ~features.stays
    return mask


def _is_kept_without_backward(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & ~features.has_backward & features.stays
    return mask


def _is_optimizer_block_at_the_end(features: Features) -> Bool:
    mask: Bool = (features.made_in == OPTIMIZER) & features.stays
    return mask


def _is_forward_temporary(features: Features) -> Bool:
    mask: Bool = (features.made_in == FORWARD) & ~features.sees_backward & ~features.stays
    return mask


def _is_saved_in_running_forward(features: Features) -> Bool:
    trains = bool((features.passes.kind == BACKWARD).any())
    mask: Bool = (features.made_in == FORWARD) & features.stays & features.in_open_pass & trains
    return mask


TENANT_RULES: tuple[TenantRule, ...] = (
    TenantRule("library_workspace", _TEMPORARY, "workspace", _HIGH, _is_library_workspace),
    TenantRule("cublas_workspace", _TEMPORARY, "workspace", _MEDIUM, _is_workspace),
    TenantRule("sharding_gather", _COMMUNICATION, "gathered_param", _HIGH, _is_gathered_param),
    TenantRule("sharding_reduced_shard", _GRADIENTS, "shard", _MEDIUM, _is_reduced_shard),
    TenantRule("sharding_reduce", _COMMUNICATION, "reduce_scatter", _MEDIUM, _is_reduce_buffer),
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
    TenantRule("autocast_saved", _ACTIVATIONS, CAST, _HIGH, _is_saved_cast),
    TenantRule("autocast", _TEMPORARY, CAST, _HIGH, _is_cast),
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
    TenantRule("forward_keeps", _ACTIVATIONS, "saved", _LOW, _is_kept_for_a_backward),
    TenantRule("forward_only_temporary", _TEMPORARY, "op_workspace", _MEDIUM, _is_temporary_without_backward),
    TenantRule("forward_temporary", _TEMPORARY, "op_workspace", _HIGH, _is_forward_temporary),
)

#: For histories that begin or end within a step; used for what nothing else identifies.
LAST_RESORT_RULES: tuple[TenantRule, ...] = (
    TenantRule("saved_before", _ACTIVATIONS, "saved", _MEDIUM, _is_saved_before),
    TenantRule("temporary_before", _TEMPORARY, "op_workspace", _LOW, _is_temporary_before),
    TenantRule("forward_at_the_end", _ACTIVATIONS, "saved", _LOW, _is_saved_in_running_forward),
    TenantRule("forward_only_kept", _ACTIVATIONS, "kept", _LOW, _is_kept_without_backward),
    TenantRule("optimizer_at_the_end", _STATE, "state", _LOW, _is_optimizer_block_at_the_end),
)


def find_first_rule(rules: tuple[TenantRule, ...], features: Features) -> Int:
    """Return the index of the first rule that applies to each block; -1 if none does."""
    rule_index = np.full(len(features.origin), -1, dtype=np.int64)
    for index, rule in reversed(list(enumerate(rules))):
        rule_index[rule.applies(features)] = index
    return rule_index
