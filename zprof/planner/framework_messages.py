"""Time the messages of a layer, by kind of parallelism, and sum the bytes that a device sends in a step.

    data       stage 0: all_reduce of the gradients; stages 1 to 3: reduce_scatter, and all_gathers
               (DeepSpeed's stages 1 and 2: all_reduce, keep a slice); hybrid sharding: all_reduce of shards
    tensor     per entry and exit of a region, forward and backward: all_gather or reduce_scatter of T h e;
               Megatron gathers a region's input once more for the weight gradient, instead of saving it
    expert     two all_to_all of the routed rows, forward and backward; rows for other nodes leave through the
               rank's share of the cards
    context    keys and values travel around the ring
    pipeline   T h e / N per boundary, direction, micro-batch and chunk

As in the ZeRO paper, an all_reduce counts twice its tensor.
"""

from collections.abc import Iterator

from zprof.model.layout import Framework, Layout, Recompute
from zprof.model.machines import Hardware
from zprof.model.plan import Axis, LinkTraffic
from zprof.model.transformer import Attention, LatentAttention, Transformer
from zprof.planner.framework_memory import count_expert_shards, keeps_gathered, stored_bytes
from zprof.planner.layers import LayerCost, get_element_bytes
from zprof.planner.stages import StageParts
from zprof.step.from_plan import RankRing, all_reduce_ns, gather_ns, get_link_name, make_group, ring_bytes

_NS_PER_S = 1e9
_FP32 = 4
_KEY = "framework.collectives"


def time_data(dense: float, experts: float, layout: Layout, hardware: Hardware) -> tuple[float, float]:
    """Return the time to gather and to reduce elements over the data-parallel ranks."""
    degrees, element = layout.degrees, get_element_bytes(layout)
    ranks = degrees.data * degrees.context
    if ranks == 1 and not experts:
        return 0.0, 0.0
    wire = _wire_bytes(layout)
    reduce_ns = all_reduce_ns if _reduces_whole(layout) else gather_ns
    shards = degrees.shard if layout.stage else ranks
    group = make_group(hardware, shards, degrees.tensor)
    gather, reduce = gather_ns(group, element * dense), reduce_ns(group, wire * dense)
    if experts:
        expert_shards = max(1, round(shards * degrees.tensor / (degrees.expert * degrees.expert_tensor)))
        ring = make_group(hardware, expert_shards, degrees.expert * degrees.expert_tensor)
        gather += gather_ns(ring, element * experts)
        reduce += reduce_ns(ring, wire * experts)
    if layout.stage and degrees.replicas > 1:
        shard = dense / degrees.shard + experts / count_expert_shards(layout)
        reduce += all_reduce_ns(_make_replica_group(layout, hardware), wire * shard)
    return (gather if layout.stage else 0.0), reduce


def _reduces_whole(layout: Layout) -> bool:
    """Return whether all ranks receive whole gradients, of which DeepSpeed's stages 1 and 2 keep a slice."""
    return layout.stage == 0 or (layout.framework is Framework.DEEPSPEED and layout.stage < 3)


def _make_replica_group(layout: Layout, hardware: Hardware) -> RankRing:
    """Return the ranks that hold the same shard (hybrid sharding)."""
    degrees = layout.degrees
    return make_group(hardware, degrees.replicas, degrees.tensor * degrees.shard)


def time_tensor(cost: LayerCost, layout: Layout, hardware: Hardware) -> float:
    """Return the time of a layer's tensor-parallel messages in one pass."""
    if not cost.boundaries:
        return 0.0
    group = make_group(hardware, layout.degrees.tensor)
    return cost.boundaries * gather_ns(group, cost.stream)


def time_routed(cost: LayerCost, layout: Layout, hardware: Hardware) -> float:
    """Return the time of one all_to_all of a layer's routed rows.

    Between nodes a token travels once to each node that has experts of it (DeepSeek-V3, arXiv 2412.19437,
    section 3.2.2), on the rank's share of the cards.
    """
    routed, ranks = cost.sum("routed"), layout.degrees.expert
    if not routed or ranks == 1:
        return 0.0
    group = make_group(hardware, ranks, 1)
    inside_ns = routed * (ranks - 1) / ranks / hardware.intra_bytes_per_s * _NS_PER_S
    if group.nodes == 1:
        return group.hop_ns + inside_ns
    active = max(part.active for part in cost.parts)
    nodes = group.nodes
    reached = nodes * (1 - (1 - 1 / nodes) ** active) * (nodes - 1) / nodes
    cards = hardware.node_bytes_per_s / hardware.devices_per_node
    return group.hop_ns + max(inside_ns, routed / active * reached / cards * _NS_PER_S)


def time_context(model: Transformer, cost: LayerCost, layout: Layout, hardware: Hardware) -> float:
    """Return the time in which keys and values travel around the ring once."""
    ranks = layout.degrees.context
    if ranks == 1 or not cost.sum("attention_flop"):
        return 0.0
    group = make_group(hardware, ranks, layout.degrees.tensor)
    return gather_ns(group, _context_bytes(model, layout))


def _context_bytes(model: Transformer, layout: Layout) -> float:
    """Return the bytes of a layer's keys and values over all context ranks.

    Latent attention exchanges keys and values as its kernels read them, expanded to all heads.
    """
    mixers = [run.mixer for run in model.layers if isinstance(run.mixer, Attention | LatentAttention)]
    tensor = layout.degrees.tensor
    width = max(
        2 * mixer.key_width / min(tensor, mixer.kv_heads)
        if isinstance(mixer, Attention)
        else mixer.heads * (mixer.nope_width + mixer.rope_width + mixer.value_width) / tensor
        for mixer in mixers
    )
    return layout.tokens * width * get_element_bytes(layout)


def time_pipeline(model: Transformer, layout: Layout, hardware: Hardware) -> float:
    """Return the transfers that fill and drain the pipeline."""
    degrees = layout.degrees
    if degrees.pipeline == 1:
        return 0.0
    size = _boundary_bytes(model, layout)
    inside = degrees.devices <= hardware.devices_per_node
    rate = hardware.intra_bytes_per_s if inside else hardware.node_bytes_per_s / hardware.devices_per_node
    latency = hardware.intra_latency_ns if inside else hardware.inter_latency_ns
    return 2 * (degrees.pipeline - 1) * (latency + size / rate * _NS_PER_S)


def _boundary_bytes(model: Transformer, layout: Layout) -> float:
    """Return the bytes of a micro-batch between two stages, split over tensor ranks as sequence parallel."""
    size = layout.tokens / layout.degrees.context * model.hidden * get_element_bytes(layout)
    return size / (layout.degrees.tensor if layout.sequence_parallel else 1)


def list_traffic(
    model: Transformer, parts: StageParts, layout: Layout, hardware: Hardware
) -> Iterator[LinkTraffic]:
    """Yield the traffic of one device of a stage in a step, along each kind of parallelism."""
    degrees = layout.degrees
    passes = 3 if layout.recompute is Recompute.FULL else 2
    if degrees.data * degrees.context > 1:
        yield from _list_data_traffic(parts, layout, hardware)
    if degrees.tensor > 1:
        group = make_group(hardware, degrees.tensor)
        messages = [
            (count * (passes * cost.boundaries + cost.regathers) * layout.micro_batches, cost.stream)
            for count, cost in parts.layers
        ]
        yield _make_traffic(
            Axis.MODEL,
            get_link_name(group),
            size=sum(count * size for count, size in messages),
            element=get_element_bytes(layout),
            ranks=degrees.tensor,
            time=sum(count * gather_ns(group, size) for count, size in messages),
        )
    yield from _list_token_traffic(model, parts, layout, hardware, passes)


def _list_data_traffic(parts: StageParts, layout: Layout, hardware: Hardware) -> Iterator[LinkTraffic]:
    """Yield the traffic within the ranks that share the states, and between their replicas."""
    degrees = layout.degrees
    gathers, reductions = _count_data_messages(layout)
    gather, reduce = time_data(parts.dense_elements, parts.expert_elements, layout, hardware)
    element, wire = get_element_bytes(layout), _wire_bytes(layout)
    group = make_group(
        hardware, degrees.shard if layout.stage else degrees.data * degrees.context, degrees.tensor
    )
    size = parts.elements * (gathers * element + (1 + _reduces_whole(layout)) * reductions * wire)
    between_ns = 0.0
    if layout.stage and degrees.replicas > 1:
        replicas = _make_replica_group(layout, hardware)
        shard = parts.dense_elements / degrees.shard + parts.expert_elements / count_expert_shards(layout)
        between_ns = reductions * all_reduce_ns(replicas, wire * shard)
        yield _make_traffic(
            Axis.DATA,
            get_link_name(replicas),
            size=2 * reductions * wire * shard,
            element=element,
            ranks=degrees.replicas,
            time=between_ns,
        )
    yield _make_traffic(
        Axis.DATA,
        get_link_name(group),
        size=size,
        element=element,
        ranks=group.ranks,
        time=gathers * gather + reductions * reduce - between_ns,
    )


def _list_token_traffic(
    model: Transformer, parts: StageParts, layout: Layout, hardware: Hardware, passes: int
) -> Iterator[LinkTraffic]:
    degrees, count, element = layout.degrees, layout.micro_batches, get_element_bytes(layout)
    layers = sum(n for n, cost in parts.layers if cost.sum("attention_flop"))
    if degrees.context > 1 and layers:
        group = make_group(hardware, degrees.context, degrees.tensor)
        times = (passes + 1) * count * layers
        yield _make_traffic(
            Axis.CONTEXT,
            get_link_name(group),
            size=times * _context_bytes(model, layout),
            element=element,
            ranks=degrees.context,
            time=times * gather_ns(group, _context_bytes(model, layout)),
        )
    if degrees.expert > 1:
        routed = sum(n * cost.sum("routed") for n, cost in parts.layers)
        all_to_all = sum(n * time_routed(cost, layout, hardware) for n, cost in parts.layers)
        yield _make_traffic(
            Axis.EXPERT,
            get_link_name(make_group(hardware, degrees.expert)),
            size=2 * passes * count * routed,
            element=element,
            ranks=degrees.expert,
            time=2 * passes * count * all_to_all,
        )
    if degrees.pipeline > 1:
        size = _boundary_bytes(model, layout)
        times = 2 * count * degrees.virtual
        one = time_pipeline(model, layout, hardware) / (2 * (degrees.pipeline - 1))
        link = "intra" if degrees.devices <= hardware.devices_per_node else "inter"
        yield _make_traffic(
            Axis.PIPELINE, link, size=times * size, element=element, ranks=0, time=times * one
        )


def _make_traffic(
    axis: Axis, link: str, *, size: float, element: int, ranks: int, time: float
) -> LinkTraffic:
    """Return the traffic; with 0 ranks all bytes are on the wire."""
    return LinkTraffic(
        axis=axis,
        link=link,
        elements=round(size / element),
        bytes=round(size),
        ring_bytes=round(ring_bytes(ranks, size) if ranks else size),
        time_ns=round(time),
        assumption=_KEY,
    )


def _count_data_messages(layout: Layout) -> tuple[int, int]:
    """Return the gathers and reductions of all elements in a step (arXiv 1910.02054, section 7)."""
    count = layout.micro_batches
    if keeps_gathered(layout):
        return 1, 1
    match layout.stage:
        case 0:
            return 0, 1
        case 1:
            return 1, 1
        case 2:
            return 1, count
        case _:
            return (2 if layout.reshard else 1) * count, count


def _wire_bytes(layout: Layout) -> int:
    if layout.framework is Framework.DDP:
        return stored_bytes(layout)
    return _FP32 if layout.fp32_reduce else get_element_bytes(layout)
