"""The rules that name a block's tenant from its stack and its life; the first that applies wins.

To add one: write a function that gives a mask over the blocks, and put it in ``RULES`` with what it says and
how sure it is.  HIGH: the stack names the owner, or the life in the step leaves no other.  MEDIUM: the usual
reading, with a known exception.  LOW: the best guess, because the history ends too early.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.naming.features import Features
from zprof.analysis.memory.blocks.naming.frames import Origin
from zprof.analysis.memory.blocks.naming.passes import BACKWARD, FORWARD
from zprof.analysis.memory.rank.lives import Bool
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

#: What cuBLAS gets of torch as workspace, once for each thread and stream, and keeps:
#: ``CUBLAS_WORKSPACE_CONFIG`` :4096:2:16:8, and 32 MiB on Hopper (``CUDABlas.cpp``).
_WORKSPACE = 8_519_680
_HOPPER_WORKSPACE = 32 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """``applies`` gives the blocks that belong to ``tenant``, as ``sub``."""

    name: str
    tenant: Tenant
    sub: str
    confidence: Confidence
    applies: Callable[[Features], Bool]


def _workspace(seen: Features) -> Bool:
    called = seen.made_by(Origin.FORWARD, Origin.FORWARD_NAME)
    size = (seen.requested_bytes == _WORKSPACE) | (called & (seen.requested_bytes == _HOPPER_WORKSPACE))
    mask: Bool = seen.stays & size & (called | seen.made_by(Origin.BARE, Origin.BACKWARD))
    return mask


def _stated_workspace(seen: Features) -> Bool:
    """Go by the stack: cuBLAS is called on the thread of the backward too, and keeps one for each thread."""
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


def _of_backward(seen: Features) -> Bool:
    made: Bool = (seen.made_in == BACKWARD) & ~seen.made_by(Origin.RECOMPUTE)
    return made


def _gradient(seen: Features) -> Bool:
    return _of_backward(seen) & seen.sees_optimizer


def _gradient_without_optimizer(seen: Features) -> Bool:
    """A fused optimizer allocates nothing, so its pass is not seen: what outlives the backward."""
    ended = ~seen.in_open_pass | ~seen.stays
    return _of_backward(seen) & ~seen.optimizer_is_next & seen.outlives_pass & ended


def _backward_temporary(seen: Features) -> Bool:
    return _of_backward(seen) & ~seen.stays


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

RULES: tuple[Rule, ...] = (
    Rule("library_workspace", _TEMPORARY, "workspace", _HIGH, _stated_workspace),
    Rule("cublas_workspace", _TEMPORARY, "workspace", _MEDIUM, _workspace),
    Rule("sharding_gather", _COMMUNICATION, "gathered_param", _HIGH, _gathered),
    Rule("sharding_reduced_shard", _GRADIENTS, "shard", _MEDIUM, _reduced_shard),
    Rule("sharding_reduce", _COMMUNICATION, "reduce_scatter", _HIGH, _reduce_buffer),
    Rule("ddp_bucket", _COMMUNICATION, "bucket", _MEDIUM, _bucket),
    Rule("collective", _COMMUNICATION, "collective", _HIGH, _collective),
    Rule("optimizer_init", _STATE, "state", _HIGH, _initialised_state),
    Rule("optimizer_long_lived", _STATE, "state", _HIGH, _long_lived_state),
    Rule("optimizer_from_before", _STATE, "state", _MEDIUM, _state_from_before),
    Rule("optimizer_temporary", _TEMPORARY, "optimizer", _HIGH, _optimizer_temporary),
    Rule("clip_or_scale", _TEMPORARY, "clip", _HIGH, _clip),
    Rule("sharding_parameter", _PARAMETERS, "shard", _HIGH, _shard),
    Rule("module_setup", _PARAMETERS, "weight", _HIGH, _module_setup),
    Rule("constructor", _PARAMETERS, "weight", _LOW, _constructor),
    Rule("recomputed", _ACTIVATIONS, "recomputed", _HIGH, _recomputed),
    Rule("recomputed_at_the_end", _ACTIVATIONS, "recomputed", _LOW, _recomputed_at_the_end),
    Rule("recompute_temporary", _TEMPORARY, "op_workspace", _HIGH, _recompute_temporary),
    Rule("backward_until_optimizer", _GRADIENTS, "grad", _HIGH, _gradient),
    Rule("backward_outlived", _GRADIENTS, "grad", _MEDIUM, _gradient_without_optimizer),
    Rule("backward_temporary", _TEMPORARY, "act_grad", _HIGH, _backward_temporary),
    Rule("forward_until_backward", _ACTIVATIONS, "saved", _HIGH, _saved),
    Rule("forward_name_until_backward", _ACTIVATIONS, "saved", _MEDIUM, _saved_by_name),
    Rule("forward_in_running_backward", _ACTIVATIONS, "saved", _MEDIUM, _saved_in_running_backward),
    Rule("forward_output_kept", _ACTIVATIONS, "kept", _LOW, _kept_output),
    Rule("forward_temporary", _TEMPORARY, "op_workspace", _HIGH, _forward_temporary),
)

#: Where the history ends within a pass: tried after the same block of the step before has been asked.
LAST_RESORT: tuple[Rule, ...] = (
    Rule("forward_at_the_end", _ACTIVATIONS, "saved", _LOW, _saved_in_running_forward),
)


def first_rule(rules: tuple[Rule, ...], seen: Features) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Index of the first rule that applies to each block; -1 where none does."""
    found = np.full(len(seen.origin), -1, dtype=np.int64)
    for index, rule in reversed(list(enumerate(rules))):
        found[rule.applies(seen)] = index
    return found
