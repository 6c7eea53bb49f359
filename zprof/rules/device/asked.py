"""Rules about what the device computes slower than it could."""

from zprof.model.causes import Cause
from zprof.rules.device.comm_slows_compute import comm_slows_compute
from zprof.rules.device.copy_overhead import copy_overhead
from zprof.rules.device.lost_compute_efficiency import lost_compute_efficiency
from zprof.rules.rule import Rule

_COMPUTE = ("compute_ns",)

ASKED: tuple[Rule, ...] = (
    Rule(cause=Cause.COMM_SLOWS_COMPUTE, check=comm_slows_compute, claims=_COMPUTE),
    Rule(cause=Cause.COPY_OVERHEAD, check=copy_overhead, claims=("compute_ns", "exposed_memcpy_ns")),
    Rule(cause=Cause.LOST_COMPUTE_EFFICIENCY, check=lost_compute_efficiency, claims=_COMPUTE),
)
