"""Names of causes and their stable ids.

ZP1xx measurement, ZP2xx memory, ZP3xx waiting, ZP4xx transfer and volume, ZP5xx host and device.
An id is given once and never used again for another cause.
"""

from enum import StrEnum


class Cause(StrEnum):
    """Why a step is slow or out of memory; the value is the name in reports."""

    MEASUREMENT_ARTIFACT = "measurement_artifact"
    BUFFERS_DOMINATE = "buffers_dominate"
    FRAGMENTATION = "fragmentation"
    ACTIVATIONS_DOMINATE = "activations_dominate"
    LOGITS_DOMINATE = "logits_dominate"
    REPLICATED_STATE = "replicated_state"
    WRONG_STAGE = "wrong_stage"
    RETAINED_GRADIENTS = "retained_gradients"
    INIT_SPIKE = "init_spike"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    STRAGGLER_RANK = "straggler_rank"
    NO_PREFETCH = "no_prefetch"
    LOW_BUS_BANDWIDTH = "low_bus_bandwidth"
    ALLOCATOR_RETRIES = "allocator_retries"


FINDING_IDS: dict[Cause, str] = {
    Cause.MEASUREMENT_ARTIFACT: "ZP101",
    Cause.BUFFERS_DOMINATE: "ZP201",
    Cause.FRAGMENTATION: "ZP202",
    Cause.ACTIVATIONS_DOMINATE: "ZP203",
    Cause.LOGITS_DOMINATE: "ZP204",
    Cause.REPLICATED_STATE: "ZP205",
    Cause.WRONG_STAGE: "ZP206",
    Cause.RETAINED_GRADIENTS: "ZP207",
    Cause.INIT_SPIKE: "ZP208",
    Cause.OUTSIDE_ALLOCATOR: "ZP209",
    Cause.STRAGGLER_RANK: "ZP301",
    Cause.NO_PREFETCH: "ZP401",
    Cause.LOW_BUS_BANDWIDTH: "ZP402",
    Cause.ALLOCATOR_RETRIES: "ZP501",
}
