"""Reject impossible jobs with one line on the conflict and a value that would work.

Checks run in this order, because later checks rely on earlier ones: model sizes, batch and element sizes,
the shape against the parameters, degrees, residual state, hardware, and the largest unit against the device.

The bounds are far beyond any real job, yet small enough that no figure overflows or takes long to compute.
The largest unit is the largest given unit, else a block or the part outside the blocks.
"""

import math
from collections import Counter

from zprof.base.errors import BadInput
from zprof.base.formatting import format_decimal_bytes
from zprof.model.job import Degrees, Job, Shape
from zprof.model.machines import Hardware
from zprof.planner.model_shapes import count_block_parameters, count_parameters
from zprof.planner.parallelism import count_layers, model_parallel_sizes
from zprof.planner.rounding import ceil_div

MAX_PARAMETERS = 10**15
#: Ten times the deepest model ever trained; the planner walks through every layer.
MAX_LAYERS = 10**4
MAX_WIDTH = 10**7
_MAX_TOKENS = 10**9
_MAX_BYTES = 10**18
#: Tolerance between given parameters and the shape: published sizes are rounded and omit norms and biases.
TOLERANCE_RATIO = 0.05
_UNIT_BYTES = ("saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes")
_MAX_MICRO_BATCHES = 10**6
_MAX_ELEMENT_BYTES = 1024
_MAX_UNITS = 10**6
_MAX_ELEMENTS = 10**15
#: Element sizes that may be 0: the job has no such tensor.
_SIZES_FROM_0 = ("gradient", "optimizer_state", "gradient_copy")
_SIZES_FROM_1 = ("parameter", "gathered", "reduced")
MAX_DEVICES = 10**6
#: Maximum number of degrees that a hint lists.
_MAX_LISTED = 8
_MAX_RATE = 1e24
_MAX_NODE = 10**5
_MAX_LATENCY_NS = 10**12
_RATES = ("flops_per_s", "node_bytes_per_s", "intra_bytes_per_s", "host_bytes_per_s")
_OPTIONAL_RATES = ("fp32_flops_per_s", "fp8_flops_per_s", "fp4_flops_per_s", "device_bytes_per_s")


def refuse_impossible(job: Job) -> None:
    """Check that a job is possible.

    Raises:
        BadInput: one line on the conflict, with a value that would work.
    """
    refuse_model(job)
    refuse_running(job)
    refuse_contradiction(job)
    refuse_degrees(job)
    refuse_residual(job)
    if job.hardware is not None:
        refuse_hardware(job.hardware)
        refuse_large_units(job, job.hardware)


def refuse_model(job: Job) -> None:
    """Check the sizes of the model, its shape and its units.

    Raises:
        BadInput: a size is out of bounds, or two units share a name.
    """
    refuse_unless_integer("parameters", job.parameters, max_value=MAX_PARAMETERS)
    refuse_unless_integer("frozen parameters", job.frozen_parameters, min_value=0, max_value=job.parameters)
    if job.shape is not None:
        _refuse_shape(job.shape)
    if len(job.units) > MAX_LAYERS:
        raise BadInput(f"the model has {len(job.units)} units", hint=f"at most {MAX_LAYERS}")
    for unit in job.units:
        name = f"unit {unit.name[:60]!r}:"
        refuse_unless_integer(f"{name} elements", unit.elements, max_value=MAX_PARAMETERS)
        refuse_unless_integer(
            f"{name} frozen elements", unit.frozen_elements, min_value=0, max_value=unit.elements
        )
        for field in _UNIT_BYTES:
            size = getattr(unit, field)
            if size is not None:
                refuse_unless_integer(f"{name} {field}", size, min_value=0, max_value=_MAX_BYTES)
    duplicates = [name for name, count in Counter(unit.name for unit in job.units).items() if count > 1]
    if duplicates:
        raise BadInput(f"two units are named {duplicates[0][:60]!r}", hint="give each unit a unique name")


def refuse_contradiction(job: Job) -> None:
    """Check the given parameters against the shape, or against the units if one rank holds the full model.

    Raises:
        BadInput: they differ by more than 5 %.
    """
    if (shape := job.shape) is not None:
        hint = "omit one of them" + ("" if shape.vocabulary else ", or also give the vocabulary")
        name = f"the shape of {shape.layers} layers x {shape.hidden}"
        _refuse_mismatch(job.parameters, count_parameters(shape), name, hint)
    elif job.units and job.degrees.mp == 1:
        counted = sum(unit.elements for unit in job.units)
        _refuse_mismatch(job.parameters, counted, "the units", "omit parameters")


def _refuse_shape(shape: Shape) -> None:
    refuse_unless_integer("layers", shape.layers, max_value=MAX_LAYERS)
    refuse_unless_integer("hidden", shape.hidden, max_value=MAX_WIDTH)
    refuse_unless_integer("vocabulary", shape.vocabulary, min_value=0, max_value=_MAX_TOKENS)
    refuse_unless_integer("context", shape.context, min_value=0, max_value=_MAX_TOKENS)
    if shape.heads is None:
        return
    refuse_unless_integer("heads", shape.heads, max_value=MAX_WIDTH)
    if shape.block is None and shape.hidden % shape.heads:
        raise BadInput(
            f"hidden {shape.hidden} is not divisible by {shape.heads} heads",
            hint="choose heads that divide hidden",
        )


def _refuse_mismatch(stated: int, counted: int, reference: str, hint: str) -> None:
    if abs(stated - counted) > TOLERANCE_RATIO * counted:
        raise BadInput(
            f"parameters {stated:.4g} contradict {reference} with {counted:.4g} parameters", hint=hint
        )


def refuse_running(job: Job) -> None:
    """Check batch, element sizes and overlap.

    Raises:
        BadInput: a value is out of bounds.
    """
    batch, overlap = job.batch, job.overlap
    for name, size in (("micro-batch", batch.samples), ("sequence", batch.sequence)):
        if size is not None:
            refuse_unless_integer(name, size, max_value=_MAX_TOKENS)
    refuse_unless_integer("micro-batches", batch.micro_batches, max_value=_MAX_MICRO_BATCHES)
    for min_size, names in ((0, _SIZES_FROM_0), (1, _SIZES_FROM_1)):
        for name in names:
            size = getattr(job.element_bytes, name)
            refuse_unless_integer(
                f"bytes per element: {name}", size, min_value=min_size, max_value=_MAX_ELEMENT_BYTES
            )
    refuse_unless_integer("prefetch", overlap.prefetch, min_value=0, max_value=_MAX_UNITS)
    refuse_unless_integer("reductions in flight", overlap.reductions_in_flight, max_value=_MAX_UNITS)
    refuse_unless_integer("alignment", overlap.alignment_elements, max_value=_MAX_ELEMENTS)


def refuse_residual(job: Job) -> None:
    """Check that Pa and Pa+cpu have checkpoints and model-parallel ranks.

    Raises:
        BadInput: a technique cannot apply, or the constant buffer size is out of bounds.
    """
    residual = job.residual
    if residual.constant_buffer_elements is not None:
        refuse_unless_integer(
            "constant buffer elements", residual.constant_buffer_elements, max_value=_MAX_ELEMENTS
        )
    if residual.offload and not residual.partition:
        raise BadInput("Pa+cpu moves partitioned checkpoints, but Pa is off", hint="enable Pa too")
    name = "Pa+cpu" if residual.offload else "Pa"
    if residual.partition and not residual.checkpointing:
        raise BadInput(
            f"{name} splits checkpoints, but checkpointing is off", hint="enable checkpointing too"
        )
    if residual.partition and job.degrees.mp == 1:
        raise BadInput(
            f"{name} splits checkpoints over model-parallel ranks, but mp is 1", hint="use mp above 1"
        )


def refuse_degrees(job: Job) -> None:
    """Check data, model and pipeline parallelism.

    Raises:
        BadInput: a degree is below 1, the product exceeds the device limit, mp does not divide hidden, heads
            or vocabulary, or pp does not divide the layers.
    """
    degrees = job.degrees
    for name in ("dp", "mp", "pp"):
        refuse_unless_integer(name, getattr(degrees, name), max_value=MAX_DEVICES)
    if degrees.devices > MAX_DEVICES:
        raise BadInput(
            f"dp {degrees.dp} x mp {degrees.mp} x pp {degrees.pp} is {degrees.devices} devices",
            hint=f"at most {MAX_DEVICES}",
        )
    if job.shape is not None:
        _refuse_model_parallel(degrees, job.shape)
    layers = count_layers(job)
    if layers is not None:
        if degrees.pp > layers:
            raise BadInput(f"pp {degrees.pp} is more than the {layers} layers", hint=f"at most {layers}")
        if layers % degrees.pp:
            dividing = [str(part) for part in range(1, min(layers, 64) + 1) if layers % part == 0]
            raise BadInput(
                f"pp {degrees.pp} does not divide {layers} layers",
                hint=f"one of {', '.join(dividing[:_MAX_LISTED])}",
            )
    elif degrees.mp * degrees.pp > job.parameters:
        raise BadInput(
            f"mp {degrees.mp} x pp {degrees.pp} is more than {job.parameters} parameters",
            hint="lower mp or pp",
        )


def _refuse_model_parallel(degrees: Degrees, shape: Shape) -> None:
    sizes = model_parallel_sizes(shape)
    for name, size in sizes.items():
        if size % degrees.mp:
            powers = [1 << bit for bit in range(_MAX_LISTED)]
            dividing = [str(power) for power in powers if not any(each % power for each in sizes.values())]
            raise BadInput(
                f"mp {degrees.mp} does not divide {name} {size}",
                hint=f"powers of two that divide: {', '.join(dividing)}",
            )
    if shape.vocabulary % degrees.mp:
        padded = ceil_div(shape.vocabulary, degrees.mp) * degrees.mp
        raise BadInput(
            f"mp {degrees.mp} does not divide vocabulary {shape.vocabulary}", hint=f"pad it to {padded}"
        )


def refuse_hardware(hardware: Hardware) -> None:
    """Check that rates are finite and above 0, counts are in bounds and the efficiency is at most 1.

    Raises:
        BadInput: a value is out of bounds.
    """
    prefix = f"{hardware.name[:60] or 'hardware'}:"
    refuse_unless_integer(f"{prefix} memory_bytes", hardware.memory_bytes, max_value=_MAX_BYTES)
    refuse_unless_integer(f"{prefix} devices_per_node", hardware.devices_per_node, max_value=_MAX_NODE)
    for name in _RATES:
        refuse_unless_positive(f"{prefix} {name}", getattr(hardware, name), max_value=_MAX_RATE)
    for name in _OPTIONAL_RATES:
        if getattr(hardware, name) is not None:
            refuse_unless_positive(f"{prefix} {name}", getattr(hardware, name), max_value=_MAX_RATE)
    refuse_unless_positive(f"{prefix} efficiency_ratio", hardware.efficiency_ratio, max_value=1.0)
    if hardware.cards_per_node is not None:
        refuse_unless_integer(f"{prefix} cards_per_node", hardware.cards_per_node, max_value=_MAX_NODE)
    if hardware.matmul_ratio is not None:
        refuse_unless_positive(f"{prefix} matmul_ratio", hardware.matmul_ratio, max_value=1.0)
    for name in ("intra_latency_ns", "inter_latency_ns"):
        refuse_unless_integer(
            f"{prefix} {name}", getattr(hardware, name), min_value=0, max_value=_MAX_LATENCY_NS
        )


def refuse_large_units(job: Job, hardware: Hardware) -> None:
    """Check that the largest unit fits on a device: every scheme unshards it to compute.

    Raises:
        BadInput: its parameters alone are larger than the device.
    """
    sizes = [(unit.elements, f"unit {unit.name[:60]!r}") for unit in job.units]
    if not sizes and job.shape is not None:
        hidden, mp = job.shape.hidden, job.degrees.mp
        block = count_block_parameters(job.shape)
        outside = count_parameters(job.shape) - job.shape.layers * block
        sizes = [(block // mp, f"a block of hidden {hidden}"), (outside // mp, "the embedding")]
    elements, name = max(sizes, default=(0, ""))
    size = elements * job.element_bytes.gathered
    if size > hardware.memory_bytes:
        raise BadInput(
            f"{name} is {format_decimal_bytes(size)} unsharded, {hardware.name[:60]} has "
            f"{format_decimal_bytes(hardware.memory_bytes)}",
            hint="raise mp, or split it into smaller units",
        )


def refuse_unless_integer(name: str, value: object, *, max_value: int, min_value: int = 1) -> None:
    """Refuse a value that is not an integer from ``min_value`` to ``max_value``.

    Raises:
        BadInput: one line with the number and the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} is {_format_number(value)}", hint="must be an integer")
    if not min_value <= value <= max_value:
        raise BadInput(
            f"{name} is {_format_number(value)}",
            hint=f"must be an integer from {min_value} to {_format_number(max_value)}",
        )


def refuse_unless_positive(name: str, value: object, *, max_value: float) -> None:
    """Refuse a value that is not a finite number above 0 and up to ``max_value``.

    Raises:
        BadInput: one line with the number and the bounds.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= max_value:  # type: ignore[arg-type, operator]
        raise BadInput(
            f"{name} is {_format_number(value)}", hint=f"must be above 0 and at most {max_value:g}"
        )


def _format_number(value: object) -> str:
    """Format a number of any size in a few characters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**6:
        digits = value.bit_length() * 3 // 10
        return f"{value:g}" if digits < 300 else f"a number of about {digits} digits"
    return repr(value)[:40]
