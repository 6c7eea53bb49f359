"""Rules about what the host does while the device has nothing to run."""

from zprof.model.causes import Cause
from zprof.rules.host.allocator_retries import allocator_retries
from zprof.rules.host.blocking_sync import blocking_sync
from zprof.rules.host.cpu_bound_launch import cpu_bound_launch
from zprof.rules.host.data_loader import data_loader
from zprof.rules.host.offload_on_critical_path import offload_on_critical_path
from zprof.rules.rule import Rule

#: Also asked where memory alone is read.
ALLOCATOR_RETRIES = Rule(
    cause=Cause.ALLOCATOR_RETRIES,
    check=allocator_retries,
    claims=("idle_ns", "exposed_transfer_ns"),
)
ASKED: tuple[Rule, ...] = (
    ALLOCATOR_RETRIES,
    Rule(
        cause=Cause.BLOCKING_SYNC,
        check=blocking_sync,
        claims=("idle_ns", "exposed_transfer_ns"),
    ),
    Rule(cause=Cause.DATA_LOADER, check=data_loader, claims=("idle_ns", "exposed_transfer_ns")),
    Rule(
        cause=Cause.OFFLOAD_ON_CRITICAL_PATH,
        check=offload_on_critical_path,
        claims=("exposed_memcpy_ns", "idle_ns", "exposed_transfer_ns"),
    ),
    Rule(
        cause=Cause.CPU_BOUND_LAUNCH,
        check=cpu_bound_launch,
        claims=("idle_ns", "exposed_transfer_ns"),
        # while the device of one rank runs dry, the others wait for it
        elsewhere=("exposed_wait_ns",),
    ),
)
