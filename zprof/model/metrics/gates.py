"""Explain what the gates of ``zprof check`` measure."""

from zprof.model.metrics.metric import Better, Metric
from zprof.model.quantities import Unit
from zprof.model.tenants import DISPLAY_ORDER

_PEAK = "on the rank with the highest peak"
GATE_METRICS: tuple[Metric, ...] = (
    Metric(
        path="check.peak_memory",
        title="peak memory",
        help=f"Peak live bytes in the allocator, {_PEAK}.",
        own_unit=Unit.BYTES,
        better=Better.LESS,
    ),
    *(
        Metric(
            path=f"check.peak_memory.{part}",
            title=part.replace("_", " "),
            help="Bytes of this tenant at its own maximum in the memory window, on the rank with most.",
            own_unit=Unit.BYTES,
            better=Better.LESS,
        )
        for part in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
    Metric(
        path="check.untagged_ratio",
        title="untagged share",
        help="Share of the peak that belongs to no tenant, on the rank where it is largest.",
        better=Better.LESS,
    ),
    Metric(
        path="check.exposed_ratio",
        title="exposed share",
        help="Share of the step in which a collective runs and the rank does not compute.",
        better=Better.LESS,
    ),
    Metric(
        path="check.overlap_ratio",
        title="hidden share",
        help="Share of the collective time that is hidden under compute.",
        better=Better.MORE,
    ),
    Metric(
        path="check.collective_bytes",
        title="bytes of collectives",
        help="Bytes of the full tensors in all collectives of a step.",
        better=Better.LESS,
    ),
    Metric(
        path="check.collective_count",
        title="collectives",
        help="Number of collectives per step.",
        better=Better.LESS,
    ),
    Metric(
        path="check.collective_bytes_law",
        title="bytes moved, in parameters",
        help="Bytes that a rank moves per step, as a multiple of the model's parameter bytes.",
        own_unit=Unit.PSI,
        better=Better.LESS,
    ),
    Metric(
        path="check.step_time",
        title="step time",
        help="Mean wall time per step; the interval of its change is checked against the limit.",
        own_unit=Unit.NS,
        better=Better.LESS,
    ),
    Metric(
        path="check.exposed_wait",
        title="exposed wait",
        help="Exposed time per step in which collectives wait for their last rank.",
        own_unit=Unit.NS,
        better=Better.LESS,
    ),
)
