"""List the layouts that a framework can run on a number of devices: degrees, ZeRO stage, sharding, schedule.

Each layout has one sample per micro-batch and no recomputation; :mod:`zprof.planner.search` varies both.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.layout import Framework, Layout, ParallelDegrees, PipelineSchedule
from zprof.model.machines import Hardware
from zprof.model.transformer import Attention, Experts, LatentAttention, Mamba, Mlp, Transformer
from zprof.planner.layers import is_low_precision

#: Tensor parallelism beyond 16 ranks leaves too little of a matrix per rank, also inside larger domains.
MAX_TENSOR = 16
#: Chunks per stage that the interleaved schedule is tried with.
VIRTUAL = (2, 3, 4, 5, 6, 8, 10)
#: A context rank has two chunks of the sequence, one from each end, so that causal attention is balanced.
_CHUNKS_PER_CONTEXT_RANK = 2


def list_layouts(
    model: Transformer,
    hardware: Hardware,
    base: Layout,
    *,
    devices: int,
    global_batch: int,
    frameworks: Sequence[Framework],
    offload: bool = False,
) -> Iterator[Layout]:
    """Yield the legal layouts, with smaller degrees first.

    ``base``: sequence, precision, optimizer, kernels and buffers of all layouts. ``offload``: with the
    optimizer, and for stage 3 the parameters, in host memory.
    """
    for framework in frameworks:
        for degrees in list_degrees(model, hardware, framework, devices=devices, sequence=base.sequence):
            if global_batch % degrees.data:
                continue
            for layout in _list_stages(replace(base, framework=framework, degrees=degrees), hardware):
                yield replace(
                    layout,
                    micro_batch=1,
                    micro_batches=global_batch // degrees.data,
                    sequence_parallel=degrees.tensor > 1,
                    fp32_reduce=reduces_in_fp32(layout),
                    schedule=PipelineSchedule.ONE_F_ONE_B,
                    offload_optimizer=offload and layout.stage > 0,
                    offload_parameters=offload and layout.stage == 3,
                )


def reduces_in_fp32(layout: Layout) -> bool:
    """Return whether gradients are reduced in fp32: if asked for, and by Megatron's default in 16 bits."""
    is_default = layout.framework is Framework.MEGATRON and not is_low_precision(layout)
    return layout.fp32_reduce or (is_default and layout.master_weights)


def list_degrees(
    model: Transformer, hardware: Hardware, framework: Framework, *, devices: int, sequence: int
) -> Iterator[ParallelDegrees]:
    """Yield the degrees that divide the model and whose product is ``devices``.

    Pipelines are Megatron's. DDP and DeepSpeed have data-parallel ranks only.
    """
    has_tensor = framework in (Framework.MEGATRON, Framework.FSDP2)
    tensors = list_tensor_degrees(model, hardware, framework) if has_tensor else (1,)
    for tensor in tensors:
        for pipeline in list_divisors(devices // tensor) if devices % tensor == 0 else ():
            if pipeline > (model.layer_count if framework is Framework.MEGATRON else 1):
                break
            for context in list_divisors(devices // tensor // pipeline):
                if context > 1 and (not has_tensor or sequence % (_CHUNKS_PER_CONTEXT_RANK * context)):
                    continue
                data = devices // tensor // pipeline // context
                for expert in _list_expert_degrees(model, data * context * tensor) if has_tensor else (1,):
                    yield ParallelDegrees(
                        data=data,
                        tensor=tensor,
                        context=context,
                        pipeline=pipeline,
                        expert=expert,
                        shard=data * context,
                    )


def list_tensor_degrees(model: Transformer, hardware: Hardware, framework: Framework) -> tuple[int, ...]:
    """Return the tensor-parallel degrees, within a node, that divide heads, hidden size and MLP widths.

    Megatron also copies a head of keys and values to several ranks; FSDP2's DTensor splits whole heads.
    """
    limit = min(hardware.devices_per_node, MAX_TENSOR)
    copies = framework is Framework.MEGATRON
    return tuple(
        degree for degree in range(1, limit + 1) if divides_model(model, degree, copies_heads=copies)
    )


def divides_model(model: Transformer, degree: int, *, copies_heads: bool) -> bool:
    """Return True if tensor parallelism of this degree splits every matrix evenly."""
    sizes = [model.hidden]
    for run in model.layers:
        match run.mixer:
            case Attention(heads=heads, kv_heads=kv_heads):
                if kv_heads % degree and not (copies_heads and degree % kv_heads == 0):
                    return False
                sizes.append(heads)
            case LatentAttention(heads=heads):
                sizes.append(heads)
            case Mamba(heads=heads, groups=groups):
                sizes += (heads, groups)
        match run.feed_forward:
            case Mlp(width=width):
                sizes.append(width)
            case Experts(width=width, shared_width=shared_width):
                sizes += (width, shared_width)
    return all(size % degree == 0 for size in sizes)


def list_virtual_degrees(model: Transformer, layout: Layout) -> tuple[int, ...]:
    """Return the chunks per stage of the interleaved schedule; none if it cannot run.

    The micro-batches must be a multiple of the stages (Megatron-LM, ``forward_backward_pipelining_with_
    interleaving``), and each chunk has at least one layer.
    """
    stages = layout.degrees.pipeline
    if stages == 1 or layout.micro_batches % stages:
        return ()
    return tuple(chunks for chunks in VIRTUAL if chunks * stages <= model.layer_count)


def list_divisors(number: int) -> tuple[int, ...]:
    """Return the divisors in ascending order."""
    low = [part for part in range(1, int(number**0.5) + 1) if number % part == 0]
    return (*low, *(number // part for part in reversed(low) if part * part != number))


def _list_expert_degrees(model: Transformer, ranks: int) -> tuple[int, ...]:
    """Return the degrees that divide the number of experts of every layer and the ranks of a stage."""
    experts = [run.feed_forward.experts for run in model.layers if isinstance(run.feed_forward, Experts)]
    if not experts:
        return (1,)
    return tuple(
        degree
        for degree in list_divisors(min(experts))
        if ranks % degree == 0 and all(count % degree == 0 for count in experts)
    )


def _list_stages(layout: Layout, hardware: Hardware) -> Iterator[Layout]:
    """Yield the ZeRO stages of the framework, with each way to shard and to reshard."""
    degrees = layout.degrees
    match layout.framework:
        case Framework.DDP:
            yield replace(layout, stage=0, degrees=replace(degrees, shard=1))
        case Framework.DEEPSPEED:
            yield from (replace(layout, stage=stage) for stage in (1, 2, 3))
        case Framework.MEGATRON:
            yield replace(layout, stage=1)
        case Framework.FSDP2:
            in_node = hardware.devices_per_node // degrees.tensor
            shards = [degrees.shard]
            if 1 < in_node < degrees.shard and degrees.shard % in_node == 0:
                shards.append(in_node)
            for shard in shards:
                for reshard in (True, False):
                    yield replace(layout, stage=3, reshard=reshard, degrees=replace(degrees, shard=shard))


def refuse_illegal(model: Transformer, layout: Layout) -> None:
    """Check that the degrees of a layout divide the model, the sequence and the ranks.

    Raises:
        BadInput: one line on the conflict, with values that would work.
    """
    degrees, layers = layout.degrees, model.layer_count
    if not divides_model(model, degrees.tensor, copies_heads=True):
        legal = [
            degree
            for degree in range(1, MAX_TENSOR + 1)
            if divides_model(model, degree, copies_heads=layout.framework is Framework.MEGATRON)
        ]
        raise BadInput(
            f"tp {degrees.tensor} does not divide the heads, the hidden size and the MLP",
            hint=f"one of {', '.join(map(str, legal))}",
        )
    if layout.framework is Framework.DEEPSPEED and degrees.pipeline > 1 and layout.stage > 1:
        raise BadInput(
            f"DeepSpeed has no pipeline with ZeRO stage {layout.stage}",
            hint="use --stage 1, or another framework",
        )
    if degrees.pipeline * degrees.virtual > layers:
        raise BadInput(
            f"pp {degrees.pipeline} x {degrees.virtual} chunks is more than the {layers} layers",
            hint=f"at most {layers} chunks in total",
        )
    if degrees.virtual > 1 and layout.micro_batches % degrees.pipeline:
        raise BadInput(
            f"{layout.micro_batches} micro-batches are not a multiple of pp {degrees.pipeline}, as the "
            "interleaved schedule needs",
            hint="change --micro-batches or --global-batch, or omit --virtual",
        )
    if layout.schedule is PipelineSchedule.INTERLEAVED and degrees.pipeline > 1 and degrees.virtual == 1:
        raise BadInput("the interleaved schedule needs several chunks per stage", hint="add --virtual 2")
    if degrees.context > 1 and layout.sequence % (_CHUNKS_PER_CONTEXT_RANK * degrees.context):
        raise BadInput(
            f"cp {degrees.context} does not divide a sequence of {layout.sequence} into two chunks per rank",
            hint=f"use a multiple of {_CHUNKS_PER_CONTEXT_RANK * degrees.context}",
        )
    ranks = degrees.data * degrees.context * degrees.tensor
    experts = _list_expert_degrees(model, ranks)
    if degrees.expert not in experts:
        raise BadInput(
            f"ep {degrees.expert} does not divide the experts and the {ranks} ranks of a stage",
            hint=f"one of {', '.join(map(str, experts))}",
        )
    if layout.stage and (degrees.data * degrees.context) % degrees.shard:
        raise BadInput(
            f"--shard {degrees.shard} does not divide {degrees.data * degrees.context} data-parallel ranks",
            hint="use a divisor, usually the devices of a node",
        )
