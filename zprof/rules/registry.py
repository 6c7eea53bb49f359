"""The rules, in the order in which they are asked: a room of this folder at a time."""

from zprof.rules.device.asked import ASKED as DEVICE
from zprof.rules.host.asked import ASKED as HOST
from zprof.rules.measurement.asked import ASKED as MEASUREMENT
from zprof.rules.memory.asked import ASKED as MEMORY
from zprof.rules.rule import Rule
from zprof.rules.transfer.asked import asked as transfer
from zprof.rules.volume.asked import ASKED as VOLUME
from zprof.rules.waiting.asked import ASKED as WAITING


def memory_rules() -> tuple[Rule, ...]:
    """Those that read memory alone."""
    return MEMORY


def rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All rules; with an expected bus bandwidth that one is held against it."""
    return (*time_rules(expected_bus_bytes_per_s), *MEMORY)


def time_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Those that read time: the recording first, what needs no clock next."""
    return (*MEASUREMENT, *VOLUME, *transfer(expected_bus_bytes_per_s), *WAITING, *HOST, *DEVICE)
