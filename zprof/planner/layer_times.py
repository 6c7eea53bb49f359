"""Time the kernels of a layer on a device: a roofline with a cost per kernel.

A matrix product takes the longer of flop / (peak x achieved share) and bytes / bandwidth, and a fixed time to
fill and drain the device, so that small products are slow. Elementwise operators take bytes / bandwidth. The
host launches the kernels one by one; where it needs longer than the device, the step is launch-bound.

The achieved share is the machine's measured share of one large product (``Hardware.matmul_ratio``), times the
share of it that a whole step keeps: clocks drop under sustained load and collectives take processors. The
second factor is calibrated on the calibration rows of ``benchmarks/data``.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from zprof.model.layout import ComputePrecision, Framework, Layout, Recompute
from zprof.model.machines import Hardware
from zprof.model.plan import Assumption
from zprof.planner.layers import LayerCost, PartCost, Product, get_element_bytes, is_low_precision

_NS_PER_S = 1e9
#: Share of the peak of one large product if the machine does not state it.
MATMUL_RATIO = 0.70
#: Share of the rate of an isolated product that products reach in a step.
SUSTAINED_RATIO = 0.80
#: The same for products in fewer bits, relative to 16 bits: scaling, and a shorter product between the same
#: transfers.
PRECISION_RATIO = {
    ComputePrecision.FP8: 0.95,
    ComputePrecision.MXFP8: 0.95,
    ComputePrecision.NVFP4: 0.70,
}
#: Share of the 16-bit peak that flash attention reaches, forward and backward, by generation, and the most
#: that a generation reaches on any device: the second one does not use Hopper's matrix instructions.
_ATTENTION_RATIOS = {1: 0.31, 2: 0.55, 3: 0.60}
_MAX_ATTENTION_FLOPS_PER_S = {1: 180e12, 2: 380e12, 3: 3e15}
#: Attention's rate falls with narrow heads: (width / 128) to this power.
_FULL_HEAD_WIDTH, _HEAD_POWER = 128, 0.4
#: Rate of the products of experts, relative to one product of all rows.
GROUPED_RATIO = 0.40
#: Share of the 16-bit peak that the scan of Mamba-2 reaches.
SCAN_RATIO = 0.02
#: Share of the memory bandwidth that elementwise kernels reach.
_STREAM_RATIO = 0.65
#: Memory bandwidth in bytes per flop of the peak, for machines that do not state it.
_BYTES_PER_FLOP = 0.0035
#: Time to fill and drain the device around one matrix product, and around one of all kernels on average.
_KERNEL_NS, _ELEMENTWISE_NS = 4_000, 1_000
#: Time in which the host launches one kernel in eager mode, and with less Python between them (Megatron,
#: compiled).
_LAUNCH_NS, _LEAN_LAUNCH_NS = 12_000, 6_000
#: Backward flop of attention, relative to the forward's.
_ATTENTION_BACKWARD = 2.5
#: Bytes moved in a backward pass, relative to the forward's.
_MOVED_BACKWARD = 2.0

TIME_ASSUMPTIONS: Mapping[str, Assumption] = {
    "framework.compute": Assumption(
        formula="sum over kernels: max(flop / (peak x share), bytes / bandwidth) + 4 us; attention at the "
        "share of its kernels; backward: twice the products, 2.5 x the attention; update: bytes / bandwidth",
        source="data sheets; measured share of one large product; calibration rows of benchmarks/data",
        deviation="no slowdown by concurrent collectives beyond the calibrated share",
    ),
}


class Rates(Struct, frozen=True, kw_only=True):
    """What a device reaches, per ns: products in the layout's precision and in 16 bits, attention, bytes."""

    product: float
    attention: float
    plain_product: float
    grouped: float
    scan: float
    bytes: float
    launch_ns: float


class LayerTimes(Struct, frozen=True, kw_only=True):
    """Device time of one layer's forward and backward pass, with recomputation, in ns, and its kernels."""

    forward_ns: float
    backward_ns: float
    kernels: float


def choose_rates(hardware: Hardware, layout: Layout) -> Rates:
    """Return the rates of a device; precisions without a peak run at the 16-bit rate."""
    precision = layout.precision
    plain_peak = hardware.flops_per_s
    peak = get_peak(hardware, precision)
    share = (hardware.matmul_ratio or MATMUL_RATIO) * SUSTAINED_RATIO
    plain = plain_peak * share / _NS_PER_S
    product = plain
    if precision is ComputePrecision.FP32:
        product = peak * SUSTAINED_RATIO / _NS_PER_S
    elif peak > plain_peak:
        product = peak * share * PRECISION_RATIO[precision] / _NS_PER_S
    version = 3 if layout.framework is Framework.MEGATRON else layout.kernels.flash_version
    attention = min(plain_peak * _ATTENTION_RATIOS[version], _MAX_ATTENTION_FLOPS_PER_S[version]) / _NS_PER_S
    bandwidth = hardware.device_bytes_per_s or hardware.flops_per_s * _BYTES_PER_FLOP
    is_lean = layout.framework is Framework.MEGATRON or layout.kernels.compiled
    return Rates(
        product=product,
        attention=attention,
        plain_product=plain,
        grouped=GROUPED_RATIO * min(product, _limit_grouped(hardware, share)),
        scan=plain_peak * SCAN_RATIO / _NS_PER_S,
        bytes=bandwidth * _STREAM_RATIO / _NS_PER_S,
        launch_ns=_LEAN_LAUNCH_NS if is_lean else _LAUNCH_NS,
    )


def _limit_grouped(hardware: Hardware, share: float) -> float:
    """Return the most that products of experts reach, which are no faster in FP4 than in FP8."""
    peak = get_peak(hardware, ComputePrecision.FP8)
    return peak * share / _NS_PER_S


def get_peak(hardware: Hardware, precision: ComputePrecision) -> float:
    """Return the peak of a precision in flop per second; the 16-bit peak if the device's own is unknown."""
    match precision:
        case ComputePrecision.FP8 | ComputePrecision.MXFP8:
            return hardware.fp8_flops_per_s or hardware.flops_per_s
        case ComputePrecision.NVFP4:
            return hardware.fp4_flops_per_s or hardware.fp8_flops_per_s or hardware.flops_per_s
        case ComputePrecision.FP32:
            return hardware.fp32_flops_per_s or hardware.flops_per_s / 8
        case _:
            return hardware.flops_per_s


def time_layer(cost: LayerCost, rates: Rates, layout: Layout) -> LayerTimes:
    """Return the device time of a layer."""
    element = get_element_bytes(layout)
    products = time_products(cost.products, rates, layout)
    attention = sum(_time_attention(part, rates) for part in cost.parts)
    moved = cost.sum("moved") / rates.bytes
    kernels = cost.sum("kernels")
    forward = products + attention + moved + kernels * _ELEMENTWISE_NS
    backward = 2 * products + _ATTENTION_BACKWARD * attention + _MOVED_BACKWARD * moved
    backward += 2 * kernels * _ELEMENTWISE_NS
    # The weight gradient is added to the gradients of earlier micro-batches.
    backward += 2 * element * cost.elements / rates.bytes
    launched = 3.0
    match layout.recompute:
        case Recompute.FULL:
            backward += forward - _time_skipped(cost, rates, layout)
            launched = 4.0
        case Recompute.SELECTIVE if layout.framework is Framework.MEGATRON:
            backward += moved
        case Recompute.SELECTIVE:
            backward += products / 2 + moved
            launched = 3.7
    return LayerTimes(forward_ns=forward, backward_ns=backward, kernels=launched * kernels)


def _count_quantizations(layout: Layout) -> float:
    """Return the passes over the operands that quantizing takes; Megatron's norms and activations
    quantize."""
    return 0.5 if layout.framework is Framework.MEGATRON else 2.0


def _time_attention(part: PartCost, rates: Rates) -> float:
    """Return the forward time of a mixer's attention or scan."""
    width = min(1.0, part.attention_width / _FULL_HEAD_WIDTH) ** _HEAD_POWER or 1.0
    return part.attention_flop / (rates.attention * width) + part.scan_flop / rates.scan


def _time_skipped(cost: LayerCost, rates: Rates, layout: Layout) -> float:
    """Return the time of the layer's last product, which torch's checkpoint does not compute again."""
    if layout.framework is Framework.MEGATRON or not cost.parts:
        return 0.0
    return time_products(cost.parts[-1].products[-1:], rates, layout)


def time_products(products: Iterable[Product], rates: Rates, layout: Layout) -> float:
    """Return the forward time of matrix products in ns."""
    element, is_low = get_element_bytes(layout), is_low_precision(layout)
    total = 0.0
    for product in products:
        read = product.rows * product.inner + product.inner * product.columns
        size = product.count * (read + product.rows * product.columns) * element
        rate = rates.grouped if product.is_grouped else rates.product
        time = max(product.flop / rate, size / rates.bytes)
        if is_low:  # read, and written in fewer bits in both orientations
            time += product.count * read * element * _count_quantizations(layout) / rates.bytes
        total += time + _KERNEL_NS
    return total
