"""Predict the memory of one device under DDP, FSDP2, DeepSpeed or Megatron, by tenant, at the highest moment.

P: elements of the device's part of the model, D ranks that share the states, w stored bytes per element, T
tokens on the rank, V words on the rank, e bytes of an activation.

    framework   parameters  gradients  optimizer state  buffers
    DDP         w P         w P        8 P              buckets w P, unless gradients are views; autocast 2 P
    FSDP2       w P / D     w P / D    8 P / D          gathered: head or three layers; reduced: one layer
    DeepSpeed   2 P (/ D)   2 P (/ D)  12 P / D         reduce_bucket_size x 2, twice with overlap_comm
    Megatron    2 P         4 P        12 P / D         in place; with gradients of 2 P, 4 P / D in the update

FSDP2's three layers are the layer in use, the layer that arrives, and its copy out of the gather's buffer.
DeepSpeed's stage 3 also keeps up to ``stage3_max_live_parameters`` gathered.

w is 4 with fp32 weights and 2 without (``--pure``). Moments: the loss, the backward pass of the last layer
and of the first, the update. The update of foreach optimizers copies 4 P / D. Sources: torch's DDP (reducer),
FSDP2 (``fully_shard``), ``torch.optim`` and ``torch.autocast``; DeepSpeed's stage_1_and_2 and stage3
optimizers and its configuration page; Megatron-Core's DDP buffers and distributed optimizer.

The reserve holds what no allocator of a framework counts: the driver's context, NCCL, and fragmentation.
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.model.layout import ComputePrecision, Framework, Layout, OptimizerKind, Recompute
from zprof.model.plan import Assumption, Fit, Term
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.planner.layers import get_element_bytes
from zprof.planner.stages import StageParts, count_in_flight

_FP32, _HALF = 4, 2
#: Driver context, and the communication library's buffers if there is more than one device: typical values.
CONTEXT_BYTES, COMMUNICATOR_BYTES = 700_000_000, 800_000_000
#: Memory that the allocator holds but cannot use, as a share of what is allocated and freed in a step.
FRAGMENTATION_RATIO = 0.05
#: A peak has to exceed the device by this share before it is called too large: the usual error of the
#: prediction.
MARGIN_RATIO = 0.10
#: Bytes per element of the optimizer's moments. Adafactor keeps a row and a column per matrix; Muon keeps one
#: moment, and leaves the embedding and the head to Adam.
_MOMENT_BYTES = {
    OptimizerKind.ADAM: 8.0,
    OptimizerKind.ADAM_8BIT: 2.0,
    OptimizerKind.ADAFACTOR: 0.01,
    OptimizerKind.MUON: 4.0,
    OptimizerKind.MOMENTUM: 4.0,
    OptimizerKind.SGD: 0.0,
}
#: Bytes per logit of an unfused loss: log-softmax and two gradients in fp32; fused: logits and gradient.
_UNFUSED_LOGIT_BYTES = 12
#: Layers that FSDP2 holds unsharded: in use, arriving, copied out of the gather's buffer.
_GATHERED_LAYERS = 3
#: Bytes per element of weights that Megatron keeps for products in fewer bits: both orientations in FP8; 16
#: bits and both orientations in FP4, with their scales.
_LOW_BYTES = {ComputePrecision.FP8: 2.0, ComputePrecision.MXFP8: 2.0625, ComputePrecision.NVFP4: 3.125}
_ENGINES_WITH_MASTER = frozenset({Framework.DEEPSPEED, Framework.MEGATRON})

_DOCS = "torch DDP, FSDP2, DeepSpeed and Megatron-Core, their documented buffers"
MEMORY_ASSUMPTIONS: Mapping[str, Assumption] = {
    "framework.parameters": Assumption(
        formula="w P (/ D in stage 3); w: 4 (DDP, FSDP2), 2 (DeepSpeed, Megatron, pure 16 bits, FP8), "
        "3.1 (NVFP4)",
        source=_DOCS,
    ),
    "framework.gradients": Assumption(
        formula="w P, 2 P (DeepSpeed) or 2 or 4 P (Megatron); / D from stage 2 on", source=_DOCS
    ),
    "framework.optimizer_state": Assumption(
        formula="moments: Adam 8, 8-bit Adam 2, Muon 4 (embedding and head 8), momentum 4, Adafactor about "
        "0; fp32 weights 4 (DeepSpeed, Megatron); / D from stage 1 on",
        source="arXiv 1910.02054, section 5; torch.optim",
    ),
    "framework.activations": Assumption(
        formula="what each layer saves, times the micro-batches in flight; full recomputation: inputs, and "
        "one layer",
        source="autograd; arXiv 2205.05198; FlashAttention; the schedule of the pipeline",
    ),
    "framework.loss": Assumption(
        formula="T V x 4 (fused: logits and gradient in 16 bits) or 12 (log-softmax, two gradients in fp32); "
        "and the head's input with its gradient, 2 T h e",
        source="torch.nn.functional.cross_entropy; fused losses of Megatron, Liger and flash-attn",
    ),
    "framework.work": Assumption(
        formula="gradients of the layer's activations; under tensor parallelism the gathered input",
        source="autograd",
    ),
    "framework.gathered": Assumption(
        formula="FSDP2: 2 x (head, or three layers); without resharding all layers; DeepSpeed stage 3: 2 x "
        "min(P, stage3_max_live_parameters)",
        source=_DOCS,
    ),
    "framework.reduced": Assumption(
        formula="FSDP2: a layer's gradients and the input of their reduce-scatter; DDP: w P of buckets; "
        "DeepSpeed: reduce_bucket_size x 2, twice with overlap_comm",
        source=_DOCS,
    ),
    "framework.cast": Assumption(formula="2 P: autocast's copies of the weights", source="torch.autocast"),
    "framework.update": Assumption(
        formula="foreach: w P / D; DeepSpeed: gradients in fp32 and a flat copy, 6 P / D; Megatron: 16-bit "
        "gradients in fp32, 4 P / D",
        source=_DOCS,
    ),
}


class StageMemory(Struct, frozen=True, kw_only=True):
    """Terms of one stage at its highest moment."""

    terms: tuple[Term, ...]
    moment: str
    stage: int

    @property
    def peak_bytes(self) -> int:
        """Sum of the terms."""
        return sum(term.bytes or 0 for term in self.terms)


_Sizes = dict[tuple[Tenant, str, str], float]
_P, _G, _O = Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE
_A, _T, _C = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS, Tenant.COMMUNICATION_BUFFERS


def plan_stage_memory(parts: StageParts, layout: Layout) -> StageMemory:
    """Return the memory of a stage at its highest moment."""
    moments = {
        "loss": _at_loss(parts, layout),
        "backward, last layer": _in_backward(parts, layout),
        "backward, first layer": _after_backward(parts, layout),
        "optimizer": _in_update(parts, layout),
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    sizes = moments[moment]
    terms = tuple(
        Term(tenant=tenant, sub=sub, bytes=round(size), assumption=f"framework.{key}")
        for (tenant, sub, key), size in sorted(
            sizes.items(), key=lambda item: DISPLAY_ORDER.index(item[0][0])
        )
        if size >= 1
    )
    return StageMemory(terms=terms, moment=moment, stage=parts.stage)


def compute_reserve_bytes(terms: tuple[Term, ...], devices: int) -> int:
    """Return what the device needs besides the peak: context, communication library, fragmentation."""
    moving = sum(term.bytes or 0 for term in terms if term.tenant in (_A, _T, _C))
    return CONTEXT_BYTES + (COMMUNICATOR_BYTES if devices > 1 else 0) + round(FRAGMENTATION_RATIO * moving)


def judge_fit(peak_bytes: int, reserve_bytes: int, memory_bytes: int) -> Fit:
    """Return whether it fits; a peak within the prediction's usual error is tight, not too large."""
    if peak_bytes + reserve_bytes <= memory_bytes:
        return Fit.FITS
    is_too_large = peak_bytes * (1 - MARGIN_RATIO) > memory_bytes - CONTEXT_BYTES
    return Fit.TOO_LARGE if is_too_large else Fit.TIGHT


def count_state_bytes(parts: StageParts, layout: Layout) -> float:
    """Return parameters, gradients and optimizer state at rest."""
    return sum(_states(parts, layout, gradients=True).values())


def count_expert_shards(layout: Layout) -> float:
    """Return the ranks that share the optimizer state of one expert."""
    degrees = layout.degrees
    return max(1.0, degrees.shard * degrees.tensor / (degrees.expert * degrees.expert_tensor))


def stored_bytes(layout: Layout) -> int:
    """Return the bytes of a stored weight."""
    if layout.precision is ComputePrecision.FP32:
        return _FP32
    return _HALF if layout.framework in _ENGINES_WITH_MASTER or not layout.master_weights else _FP32


def gradient_bytes(layout: Layout) -> int:
    """Return the bytes of an element of the kept gradients."""
    if layout.framework is Framework.MEGATRON and layout.fp32_reduce:
        return _FP32
    return stored_bytes(layout)


def keeps_gathered(layout: Layout) -> bool:
    """Return whether FSDP2 gathers once per step: in a pipeline, where micro-batches alternate."""
    return layout.framework is Framework.FSDP2 and layout.stage == 3 and layout.degrees.pipeline > 1


def state_bytes_per_element(layout: Layout) -> float:
    """Return the optimizer's bytes per element, with fp32 weights where the engine keeps its own."""
    moments = _MOMENT_BYTES[layout.optimizer]
    if layout.precision is ComputePrecision.FP32:
        return moments
    if not layout.master_weights:
        return moments / 2 if layout.optimizer is not OptimizerKind.ADAM_8BIT else moments
    return moments + (_FP32 if layout.framework in _ENGINES_WITH_MASTER else 0)


def _share(parts: StageParts, layout: Layout, *, is_sharded: bool) -> float:
    """Return the elements of the stage that one rank keeps of a state."""
    if not is_sharded:
        return parts.elements
    return parts.dense_elements / layout.degrees.shard + parts.expert_elements / count_expert_shards(layout)


def _states(parts: StageParts, layout: Layout, *, gradients: bool) -> _Sizes:
    """Return the model states; ``gradients``: they exist at this moment."""
    on_device = not layout.offload_parameters
    weights = _share(parts, layout, is_sharded=layout.stage >= 3)
    low_bytes = _LOW_BYTES.get(layout.precision) if layout.framework is Framework.MEGATRON else None
    sizes: _Sizes = {
        (_P, "weight", "parameters"): (low_bytes or stored_bytes(layout)) * weights * on_device,
        (_O, "state", "optimizer_state"): _optimizer_bytes(parts, layout) * (not layout.offload_optimizer),
    }
    keeps = layout.framework is Framework.MEGATRON
    keeps |= layout.framework is Framework.DEEPSPEED and layout.stage == 3
    if gradients or keeps:
        is_view = layout.framework is Framework.DDP and layout.buffers.gradient_as_bucket_view
        is_view &= layout.degrees.data * layout.degrees.context > 1
        held = _share(parts, layout, is_sharded=layout.stage >= 2)
        if not is_view and not (layout.offload_optimizer and layout.stage >= 2):
            sizes[_G, "grad", "gradients"] = gradient_bytes(layout) * held
    return sizes


def _optimizer_bytes(parts: StageParts, layout: Layout) -> float:
    """Return the bytes of the optimizer's state on one rank."""
    size = state_bytes_per_element(layout) * _share(parts, layout, is_sharded=layout.stage >= 1)
    if layout.optimizer is OptimizerKind.MUON:  # the second moment of the embedding and the head
        moment = _FP32 if layout.master_weights else _HALF
        size += moment * parts.root_elements / (layout.degrees.shard if layout.stage else 1)
    return size


def _kept(parts: StageParts, layout: Layout) -> float:
    """Return the activations of the micro-batches in flight."""
    saved = sum(count * cost.kept_bytes(layout.recompute) for count, cost in parts.layers)
    return saved * count_in_flight(layout, parts.stage)


def _recomputed(parts: StageParts, layout: Layout) -> float:
    """Return what recomputing the largest layer adds."""
    if layout.recompute is Recompute.NONE:
        return 0.0
    return max(
        (cost.sum("saved") - cost.kept_bytes(layout.recompute) for _, cost in parts.layers), default=0.0
    )


def _tokens(layout: Layout) -> float:
    return layout.tokens / layout.degrees.context


def _at_loss(parts: StageParts, layout: Layout) -> _Sizes:
    """Return the sizes when the loss's gradient is computed, on the last stage."""
    sizes = _states(parts, layout, gradients=layout.micro_batches > 1)
    element = get_element_bytes(layout)
    logit = 2 * element if layout.kernels.fused_loss else _UNFUSED_LOGIT_BYTES
    sizes[_A, "saved", "activations"] = _kept(parts, layout)
    head_input = 2 * max((cost.stream for _, cost in parts.layers), default=0.0) if parts.vocabulary else 0.0
    sizes[_T, "loss", "loss"] = _tokens(layout) * parts.vocabulary * logit + head_input
    layer = parts.largest_layer_elements
    sizes |= _gathered(parts, layout, max(parts.head_elements, parts.embedding_elements) + layer)
    sizes |= _reduction_buffers(parts, layout, 0.0)
    if layout.framework is Framework.DDP and layout.master_weights:
        sizes[_T, "cast", "cast"] = _HALF * parts.elements
    return sizes


def _in_backward(parts: StageParts, layout: Layout) -> _Sizes:
    """Return the sizes in the backward pass of the last layer, after the loss."""
    sizes = _states(parts, layout, gradients=layout.micro_batches > 1)
    sizes[_A, "saved", "activations"] = _kept(parts, layout)
    sizes[_A, "recomputed", "activations"] = _recomputed(parts, layout)
    sizes[_T, "work", "work"] = _work(parts, layout)
    layer = parts.largest_layer_elements
    sizes |= _gathered(parts, layout, _GATHERED_LAYERS * layer)
    sizes |= _reduction_buffers(parts, layout, layer + parts.head_elements)
    return sizes


def _after_backward(parts: StageParts, layout: Layout) -> _Sizes:
    """Return the sizes in the backward pass of the first layer: all gradients, hardly any activations."""
    sizes = _states(parts, layout, gradients=True)
    one = max((cost.kept_bytes(layout.recompute) for _, cost in parts.layers), default=0.0)
    left = one + max(0.0, count_in_flight(layout, parts.stage) - 1) / max(
        1.0, count_in_flight(layout, parts.stage)
    ) * _kept(parts, layout)
    sizes[_A, "saved", "activations"] = left
    sizes[_A, "recomputed", "activations"] = _recomputed(parts, layout)
    sizes[_T, "work", "work"] = _work(parts, layout)
    sizes |= _gathered(parts, layout, parts.embedding_elements + parts.largest_layer_elements)
    sizes |= _reduction_buffers(parts, layout, parts.embedding_elements + parts.largest_layer_elements)
    return sizes


def _in_update(parts: StageParts, layout: Layout) -> _Sizes:
    sizes = _states(parts, layout, gradients=True)
    sizes |= _reduction_buffers(parts, layout, 0.0)
    if layout.offload_optimizer:
        return sizes
    share = _share(parts, layout, is_sharded=layout.stage >= 1)
    if layout.framework is Framework.DEEPSPEED:
        size = (_FP32 + _HALF) * share
    elif layout.framework is Framework.MEGATRON:
        size = (_FP32 - gradient_bytes(layout)) * share * 2 if layout.master_weights else 0.0
    else:
        size = stored_bytes(layout) * share if layout.buffers.foreach_optimizer else 0.0
    sizes[_T, "update", "update"] = size
    return sizes


def _work(parts: StageParts, layout: Layout) -> float:
    """Return the temporary bytes of the largest layer's backward pass."""
    work = max((max(part.work for part in cost.parts) for _, cost in parts.layers), default=0.0)
    if layout.degrees.tensor > 1:
        work += max((2 * cost.stream for _, cost in parts.layers), default=0.0)
    return work


def _gathered(parts: StageParts, layout: Layout, elements: float) -> _Sizes:
    """Return the gathered parameters of stage 3; ``elements``: unsharded at this moment if they are
    resharded."""
    if layout.stage < 3 or layout.degrees.shard == 1:
        return {}
    element = get_element_bytes(layout)
    if layout.framework is Framework.DEEPSPEED:
        elements = min(parts.elements, layout.buffers.max_live_elements)
    elif not layout.reshard or keeps_gathered(layout):
        elements = parts.elements + parts.largest_layer_elements
    return {(_C, "gathered_param", "gathered"): element * min(elements, 2 * parts.elements)}


def _reduction_buffers(parts: StageParts, layout: Layout, elements: float) -> _Sizes:
    """Return the buffers of gradient reductions; ``elements``: those of unsharded gradients at this
    moment."""
    if layout.degrees.data * layout.degrees.context == 1:
        return {}
    element, buffers = get_element_bytes(layout), layout.buffers
    match layout.framework:
        case Framework.DDP:
            return {(_C, "buckets", "reduced"): stored_bytes(layout) * parts.elements}
        case Framework.FSDP2:
            wire = _FP32 if layout.fp32_reduce else element
            if keeps_gathered(layout):  # gradients are summed unsharded, in the type of the reduction
                return {(_G, "unreduced", "gradients"): wire * parts.elements}
            return {
                (_G, "unreduced", "gradients"): element * elements,
                (_C, "reduce_scatter_base", "reduced"): wire
                * min(elements, 2 * parts.largest_layer_elements),
            }
        case Framework.DEEPSPEED:
            count = 2 if buffers.overlap_comm and layout.stage < 3 else 1
            if layout.stage == 0:
                return {}
            return {(_C, "reduce_bucket", "reduced"): count * element * float(buffers.reduce_bucket_elements)}
        case _:
            return {}
