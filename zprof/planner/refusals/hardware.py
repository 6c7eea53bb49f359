"""The machine of a job: its numbers, and whether the largest unit can be whole on one device.

What is gathered is a block of 12 h^2 / mp elements or what stands around the blocks, or the units stated.
"""

from zprof.model.errors import BadInput
from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.model.units import format_bytes
from zprof.planner.models.presets import parameters_of
from zprof.planner.refusals.numbers import positive, whole

_MOST_BYTES = 10**18
_MOST_RATE = 1e24
_MOST_NODE = 10**5
_MOST_LATENCY_NS = 10**12
_RATES = ("flops_per_s", "node_bytes_per_s", "intra_bytes_per_s", "host_bytes_per_s")


def refuse_hardware(hardware: Hardware) -> None:
    """Each number above 0 and finite; the efficiency at most 1.

    Raises:
        BadInput: one is not.
    """
    of = f"{hardware.name[:60] or 'hardware'}:"
    whole(f"{of} memory_bytes", hardware.memory_bytes, most=_MOST_BYTES)
    whole(f"{of} devices_per_node", hardware.devices_per_node, most=_MOST_NODE)
    for name in _RATES:
        positive(f"{of} {name}", getattr(hardware, name), most=_MOST_RATE)
    if hardware.fp32_flops_per_s is not None:
        positive(f"{of} fp32_flops_per_s", hardware.fp32_flops_per_s, most=_MOST_RATE)
    positive(f"{of} efficiency_ratio", hardware.efficiency_ratio, most=1.0)
    for name in ("intra_latency_ns", "inter_latency_ns"):
        whole(f"{of} {name}", getattr(hardware, name), least=0, most=_MOST_LATENCY_NS)


def refuse_large_units(job: Job, hardware: Hardware) -> None:
    """A unit is whole on a device while it computes, under every scheme.

    Raises:
        BadInput: its parameters alone are larger than the device.
    """
    name, elements = _largest_unit(job)
    size = elements * job.element_bytes.gathered
    if size > hardware.memory_bytes:
        raise BadInput(
            f"{name} is {format_bytes(size)} when it is whole, {hardware.name[:60]} has "
            f"{format_bytes(hardware.memory_bytes)}",
            hint="raise mp, or split it into smaller units",
        )


def _largest_unit(job: Job) -> tuple[str, int]:
    sizes = [(unit.elements, f"unit {unit.name[:60]!r}") for unit in job.units]
    if not sizes and job.shape is not None:
        hidden, mp = job.shape.hidden, job.degrees.mp
        block = 12 * hidden**2
        around = parameters_of(job.shape) - job.shape.layers * block
        sizes = [(block // mp, f"a block of hidden {hidden}"), (around // mp, "the embedding")]
    elements, name = max(sizes, default=(0, ""))
    return name, elements
