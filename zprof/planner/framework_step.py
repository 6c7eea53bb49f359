"""Predict the step of a layout: passes of the layers, messages of each kind of parallelism, the pipeline, the
update.

The passes and data-parallel messages play the schedule of :mod:`zprof.step.from_plan`. On top of it:

    tensor     per entry and exit of a region, forward and backward: all_gather or reduce_scatter of T h e
    expert     two all_to_all of the routed rows, forward and backward, (E-1)/E of them on the link, exposed
    context    keys and values travel around the ring, hidden behind attention as far as it lasts
    pipeline   the bubble of :mod:`zprof.planner.stages`; the slowest stage sets the pace
    update     bytes of the states / memory bandwidth
    launch     kernels x launch time, where the host needs longer than the device
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.job import Overlap
from zprof.model.layout import Framework, Layout, Recompute
from zprof.model.machines import Hardware
from zprof.model.plan import Assumption, Bound, LinkTraffic, PlannedStep
from zprof.model.transformer import Transformer
from zprof.planner.framework_memory import (
    count_expert_shards,
    gradient_bytes,
    keeps_gathered,
    state_bytes_per_element,
    stored_bytes,
)
from zprof.planner.framework_messages import (
    list_traffic,
    time_context,
    time_data,
    time_pipeline,
    time_routed,
    time_tensor,
)
from zprof.planner.layer_times import LayerTimes, Rates, choose_rates, get_peak, time_layer
from zprof.planner.layers import LayerCost, Product, compute_layer_cost
from zprof.planner.stages import StageParts, count_bubble, merge_equal_runs
from zprof.step.from_plan import (
    StackTimes,
    StepPhase,
    UnitTimes,
    build_plain_passes,
    build_step_phases,
    repeat_phases,
    sum_phases,
)

_NS_PER_S = 1e9
_FP32 = 4
#: Bytes per logit that the loss moves, fused and unfused.
_FUSED_LOSS_MOVED, _UNFUSED_LOSS_MOVED = 8, 34
#: Passes over the states that foreach optimizers make in place of a fused one's.
_FOREACH_PASSES = 1.8
#: Share of tensor-parallel messages that Megatron hides behind the products they belong to.
_TENSOR_OVERLAP = 0.5
#: Share of the all_to_all of experts that Megatron hides, without and with shared experts to compute
#: meanwhile.
_EXPERT_OVERLAP, _SHARED_OVERLAP = 0.2, 0.9
#: Host time of a framework's hooks, autocast and per-parameter loops: per layer and pass of sharded stages,
#: else per layer and reduction. Calibrated on the medium model of MiniTrainBench, whose steps are
#: launch-bound.
_PASS_HOOK_NS = {Framework.FSDP2: 1_200_000, Framework.DEEPSPEED: 6_500_000}
_REDUCTION_HOOK_NS = {Framework.DDP: 3_900_000, Framework.DEEPSPEED: 2_500_000}
#: Memory bandwidth of a host that updates offloaded states, and the devices that share it: typical values.
_HOST_BYTES_PER_S, _HOST_DEVICES = 200e9, 8
#: A part of the step is what bounds it from this share on.
_LAUNCH_SHARE, _BOUND_SHARE = 0.10, 0.10
#: Share of hidden collective time by which the concurrent compute gets longer: both use processors and
#: memory.
CONTENTION_RATIO = 0.3

STEP_ASSUMPTIONS: Mapping[str, Assumption] = {
    "framework.wall": Assumption(
        formula="compute + exposed transfer + idle", source="the schedule of each framework"
    ),
    "framework.transfer": Assumption(
        formula="data parallel: what the schedule does not hide; tensor and expert parallel: all of it "
        "(Megatron hides half of the tensor-parallel messages); context parallel: beyond the attention",
        source="zprof's schedule of a step; arXiv 2205.05198; arXiv 2104.04473",
        deviation="experts are evenly loaded; no overlap of all_to_all",
    ),
    "framework.copies": Assumption(
        formula="offloaded optimizer: gradients out and weights in over the host link, and the update at "
        "200 GB/s per host; offloaded parameters: shards for each gather, beyond the compute",
        source="arXiv 2101.06840; the host link of the machine",
    ),
    "framework.idle": Assumption(
        formula="1F1B, GPipe (p-1)(f+b); interleaved that / v; zero-bubble a third; and kernels x launch "
        "time beyond the device's time",
        source="arXiv 2104.04473, section 2.2; arXiv 2401.10241",
        deviation="the slowest stage sets the pace",
    ),
    "framework.collectives": Assumption(
        formula="ring or tree on the links of the machine", source="nccl-tests, doc/PERFORMANCE.md"
    ),
}
_LEAVES = {
    "wall_ns": "framework.wall",
    "compute_ns": "framework.compute",
    "exposed_transfer_ns": "framework.transfer",
    "exposed_memcpy_ns": "framework.copies",
    "idle_ns": "framework.idle",
    "collective_ns": "framework.collectives",
    "overlapped_ns": "framework.transfer",
    "efficiency_ratio": "framework.wall",
}


#: A stage, its layers with their counts and times, and the forward and backward time of its head.
_StageTimes = tuple[StageParts, list[tuple[int, LayerCost, LayerTimes]], tuple[float, float]]


class FrameworkStep(Struct, frozen=True, kw_only=True):
    """The ledger of a step, its traffic, the host's launch time, and what bounds the step."""

    step: PlannedStep
    links: tuple[LinkTraffic, ...]
    launch_ns: int
    model_flops_ratio: float
    bound: Bound


def plan_framework_step(
    model: Transformer, stages: tuple[StageParts, ...], layout: Layout, hardware: Hardware
) -> FrameworkStep:
    """Return the step of the slowest stage."""
    rates = choose_rates(hardware, layout)
    slowest, layers, (root_forward, root_backward) = max(
        (_time_stage(model, parts, rates, layout) for parts in stages), key=_sum_forward_ns
    )
    units = []
    for count, cost, times in layers:
        tensor_ns, routed_ns = time_tensor(cost, layout, hardware), time_routed(cost, layout, hardware)
        context_ns = max(0.0, time_context(model, cost, layout, hardware) - times.forward_ns)
        is_megatron = layout.framework is Framework.MEGATRON
        one = (1 - _TENSOR_OVERLAP * is_megatron) * tensor_ns + context_ns
        hidden = _SHARED_OVERLAP if any(part.has_shared for part in cost.parts) else _EXPERT_OVERLAP
        one += 2 * (1 - hidden * is_megatron) * routed_ns
        again = one if layout.recompute is Recompute.FULL else 0.0
        gather, reduce = time_data(cost.dense_elements, cost.expert_elements, layout, hardware)
        units.append(
            UnitTimes(
                count=count,
                forward_ns=round(times.forward_ns),
                backward_ns=round(times.backward_ns),
                gather_ns=round(gather),
                reduce_ns=round(reduce),
                model_forward_ns=round(one),
                model_backward_ns=round(one + context_ns + again),
            )
        )
    gather, reduce = time_data(slowest.root_elements, 0.0, layout, hardware)
    root = UnitTimes(
        forward_ns=round(root_forward),
        backward_ns=round(root_backward),
        gather_ns=round(gather),
        reduce_ns=round(reduce),
    )
    stack = StackTimes(units=tuple(units), root=root)
    kernels = sum(count * times.kernels for count, _, times in layers)
    return _add_up(model, stages, slowest, stack, kernels, rates, layout, hardware)


def _add_up(
    model: Transformer,
    stages: tuple[StageParts, ...],
    slowest: StageParts,
    stack: StackTimes,
    kernels: float,
    rates: Rates,
    layout: Layout,
    hardware: Hardware,
) -> FrameworkStep:
    phases = sum_phases(_build_phases(stack, layout))
    gathered = _gather_after_update_ns(stack, layout)
    hidden = phases.collective_ns - phases.exposed_transfer_ns
    update = max(_update_ns(parts, layout, rates, hardware) for parts in stages)
    compute = phases.compute_ns + round(update + CONTENTION_RATIO * hidden)
    bubble = round(count_bubble(layout) * sum_phases(build_plain_passes(stack).all).wall_ns)
    launch = round(kernels * layout.micro_batches * rates.launch_ns + _hook_ns(slowest, layout))
    starved = max(0, launch - phases.compute_ns - phases.exposed_transfer_ns)
    outside = round(time_pipeline(model, layout, hardware)) + gathered
    exposed = phases.exposed_transfer_ns + outside
    copies = _exposed_copy_ns(slowest, layout, hardware, phases.compute_ns)
    wall = compute + exposed + copies + bubble + starved
    collective = max(phases.collective_ns + outside, exposed)
    peak = get_peak(hardware, layout.precision) / _NS_PER_S
    return FrameworkStep(
        step=PlannedStep(
            wall_ns=wall,
            compute_ns=compute,
            exposed_transfer_ns=exposed,
            exposed_memcpy_ns=copies,
            idle_ns=bubble + starved,
            collective_ns=collective,
            overlapped_ns=collective - exposed,
            efficiency_ratio=compute / wall,
            assumptions=_LEAVES,
        ),
        links=tuple(list_traffic(model, slowest, layout, hardware)),
        launch_ns=launch,
        model_flops_ratio=_model_flop(model, layout) / (wall * peak),
        bound=_choose_bound(wall, starved, exposed + copies, bubble),
    )


def _gather_after_update_ns(stack: StackTimes, layout: Layout) -> int:
    """Return the gather of updated weights, which DeepSpeed's stages 1 and 2 run after the update."""
    if layout.framework is not Framework.DEEPSPEED or layout.stage not in (1, 2):
        return 0
    return sum(unit.count * unit.gather_ns for unit in (*stack.units, stack.root) if unit)


def _choose_bound(wall: int, starved: int, exposed: int, bubble: int) -> Bound:
    if starved > _LAUNCH_SHARE * wall:
        return Bound.LAUNCH
    if max(exposed, bubble) > _BOUND_SHARE * wall:
        return Bound.NETWORK if exposed >= bubble else Bound.BUBBLE
    return Bound.COMPUTE


def _build_phases(stack: StackTimes, layout: Layout) -> Sequence[StepPhase]:
    """Return the phases of a step; without resharding, each forward pass gathers, and no backward pass."""
    stage, overlap = _choose_schedule(layout), Overlap(prefetch=1)
    if _gather_after_update_ns(stack, layout):  # not in the next forward pass
        root = None if stack.root is None else replace(stack.root, gather_ns=0)
        stack = StackTimes(units=tuple(replace(unit, gather_ns=0) for unit in stack.units), root=root)
    if stage == 3 and not layout.reshard:
        one = build_step_phases(stack, stage=2, micro_batches=1, overlap=overlap)
        return repeat_phases(one, layout.micro_batches)
    return build_step_phases(stack, stage=stage, micro_batches=layout.micro_batches, overlap=overlap)


def _choose_schedule(layout: Layout) -> int:
    """Return the ZeRO stage whose schedule the framework plays."""
    if layout.degrees.data * layout.degrees.context == 1:
        return 0
    if layout.framework is Framework.DEEPSPEED and layout.stage == 1:
        return 0
    return 1 if keeps_gathered(layout) else layout.stage


def _time_stage(model: Transformer, parts: StageParts, rates: Rates, layout: Layout) -> _StageTimes:
    layers = [(count, cost, time_layer(cost, rates, layout)) for count, cost in parts.layers]
    return parts, layers, _time_root(model, parts, rates, layout)


def _sum_forward_ns(timed: _StageTimes) -> float:
    _, layers, (root_forward, _) = timed
    return root_forward + sum(count * times.forward_ns for count, _, times in layers)


def _time_root(model: Transformer, parts: StageParts, rates: Rates, layout: Layout) -> tuple[float, float]:
    """Return the forward and backward time of the head and the loss; the embedding takes hardly any."""
    if not parts.vocabulary:
        return 0.0, 0.0
    tokens = layout.tokens / layout.degrees.context
    head = Product(rows=tokens, inner=model.hidden, columns=parts.vocabulary)
    product = head.flop / rates.plain_product
    moved = _FUSED_LOSS_MOVED if layout.kernels.fused_loss else _UNFUSED_LOSS_MOVED
    loss = moved * tokens * parts.vocabulary / rates.bytes
    return product + loss / 2, 2 * product + loss / 2


def _local_elements(parts: StageParts, layout: Layout) -> float:
    """Return the elements that one rank updates."""
    if not layout.stage:
        return parts.elements
    return parts.dense_elements / layout.degrees.shard + parts.expert_elements / count_expert_shards(layout)


def _update_ns(parts: StageParts, layout: Layout, rates: Rates, hardware: Hardware) -> float:
    """Return the time of the update: states, weights and gradients are read, the first two written."""
    moved = 2 * state_bytes_per_element(layout) + 2 * stored_bytes(layout) + gradient_bytes(layout)
    moved *= _local_elements(parts, layout)
    if layout.offload_optimizer:
        return moved / _HOST_BYTES_PER_S * min(_HOST_DEVICES, hardware.devices_per_node) * _NS_PER_S
    is_foreach = layout.framework in (Framework.DDP, Framework.FSDP2) and layout.buffers.foreach_optimizer
    return (_FOREACH_PASSES if is_foreach else 1.0) * moved / rates.bytes


def _exposed_copy_ns(parts: StageParts, layout: Layout, hardware: Hardware, compute_ns: int) -> int:
    """Return the copies from and to host memory that nothing hides.

    Gradients leave and weights return around an update on the host; shards of weights arrive for each gather.
    """
    local, rate = _local_elements(parts, layout), hardware.host_bytes_per_s / _NS_PER_S
    copies = 0.0
    if layout.offload_optimizer:
        copies += (gradient_bytes(layout) + stored_bytes(layout)) * local / rate
    if layout.offload_parameters:
        arriving = 2 * layout.micro_batches * stored_bytes(layout) * local / rate
        copies += max(0.0, arriving - compute_ns)
    return round(copies)


def _hook_ns(parts: StageParts, layout: Layout) -> float:
    """Return the host time of the framework's hooks in a step."""
    if layout.degrees.data * layout.degrees.context == 1:
        return 0.0
    if layout.stage == 3:
        passes = 3 if layout.recompute is Recompute.NONE else 4
        per_layer = _PASS_HOOK_NS.get(layout.framework, 0) * passes * layout.micro_batches
    else:
        reductions = layout.micro_batches if layout.stage == 2 else 1
        per_layer = _REDUCTION_HOOK_NS.get(layout.framework, 0) * reductions
    return float(per_layer * parts.layer_count)


def _model_flop(model: Transformer, layout: Layout) -> float:
    """Return the flop of a step on one rank, averaged over the stages, without recomputation."""
    tokens = layout.tokens / layout.degrees.context
    runs = merge_equal_runs(model.layers)
    layers = sum(run.count * _layer_flop(compute_layer_cost(model, run, layout)) for run in runs)
    head = 2 * tokens * model.hidden * (model.vocabulary or model.classes) / layout.degrees.tensor
    return 3 * (layers + head) * layout.micro_batches / layout.degrees.pipeline


def _layer_flop(cost: LayerCost) -> float:
    return sum(product.flop for product in cost.products) + cost.sum("attention_flop")
