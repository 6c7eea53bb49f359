"""The rules, in the order in which they are asked: a room of this folder at a time."""

from zprof.rules.device.asked import ASKED as DEVICE
from zprof.rules.host.asked import ALLOCATOR_RETRIES
from zprof.rules.host.asked import ASKED as HOST
from zprof.rules.measurement.asked import ASKED as MEASUREMENT
from zprof.rules.memory.asked import ASKED as MEMORY
from zprof.rules.rule import Rule
from zprof.rules.transfer.asked import asked as transfer
from zprof.rules.volume.asked import ASKED as VOLUME
from zprof.rules.waiting.asked import ASKED as WAITING


def memory_rules() -> tuple[Rule, ...]:
    """Those that need memory alone; one of them reads time as well, where it is known."""
    return (*MEMORY, ALLOCATOR_RETRIES)


def rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All rules; with an expected bus bandwidth that one is held against it."""
    memory = memory_rules()
    timed = [rule for rule in time_rules(expected_bus_bytes_per_s) if rule not in memory]
    return (*timed, *memory)


def time_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Those that read time: the recording first, what needs no clock next."""
    return (*MEASUREMENT, *VOLUME, *transfer(expected_bus_bytes_per_s), *WAITING, *HOST, *DEVICE)
