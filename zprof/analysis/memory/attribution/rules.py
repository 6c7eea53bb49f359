"""Find the tenant of a block by the first rule that applies to its stack and its lifetime.

To add a rule: add it to ``TENANT_RULES``, with a mask over the blocks from their features ``f``, its tenant
and confidence. HIGH: the stack identifies the owner, or the lifetime within the step leaves no other.
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


def _is_reduced_shard(features: Features) -> Bool:
    reaches = features.sees_optimizer | (
        ~features.optimizer_is_next & features.outlives_pass & ~features.stays
    )
    return features.made_by(Origin.REDUCE) & reaches


def _is_made_in_backward(features: Features) -> Bool:
    made: Bool = (features.made_in == BACKWARD) & ~features.made_by(Origin.RECOMPUTE)
    return made


def _is_gradient_without_optimizer(features: Features) -> Bool:
    """Mark blocks that outlive the backward: a fused optimizer allocates nothing, so its pass is unseen."""
    ended = ~features.in_open_pass | ~features.stays
    return _is_made_in_backward(features) & ~features.optimizer_is_next & features.outlives_pass & ended


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


def _is_saved_in_running_forward(features: Features) -> Bool:
    trains = bool((features.passes.kind == BACKWARD).any())
    mask: Bool = (features.made_in == FORWARD) & features.stays & features.in_open_pass & trains
    return mask


TENANT_RULES: tuple[TenantRule, ...] = (
    # Marks workspaces by their stack: cuBLAS has one per thread, and also runs on the backward thread.
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
    # Marks what a forward keeps to its end in a history without a backward.
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

#: For histories that begin or end within a step; used for what nothing else identifies.
LAST_RESORT_RULES: tuple[TenantRule, ...] = (
    # Marks older blocks that end in the history's first backward.
    TenantRule(
        "saved_before",
        _ACTIVATIONS,
        "saved",
        _MEDIUM,
        lambda f: f.before & (f.ends_in == BACKWARD) & f.ends_in_first_backward,
    ),
    # Marks older blocks that end in the history's first forward.
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
