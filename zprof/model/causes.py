"""Names of causes and their stable ids.

ZP1xx measurement, ZP2xx memory, ZP3xx waiting, ZP4xx transfer and volume, ZP5xx host and device.
An id is given once and never used again for another cause.
"""

from enum import StrEnum


class Cause(StrEnum):
    """Why a step is slow or out of memory; the value is the name in reports."""

    MEASUREMENT_ARTIFACT = "measurement_artifact"
    STRAGGLER_RANK = "straggler_rank"
    NO_PREFETCH = "no_prefetch"
    LOW_BUS_BANDWIDTH = "low_bus_bandwidth"


FINDING_IDS: dict[Cause, str] = {
    Cause.MEASUREMENT_ARTIFACT: "ZP101",
    Cause.STRAGGLER_RANK: "ZP301",
    Cause.NO_PREFETCH: "ZP401",
    Cause.LOW_BUS_BANDWIDTH: "ZP402",
}
