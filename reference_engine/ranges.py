"""The ranges that the engine writes into a profiler's trace, so that a reader need not guess.

    zero::launch <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>    around a launch
    zero::wait <kind> pg=<name> seq=<int> unit=<name>                               around blocking for it
    zero::comm <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>      a modelled link's transfer
    zero::compute <phase> unit=<name>                                               modelled compute
    zero::copy <what> unit=<name> bytes=<int>                                       a modelled copy (offload)
    zero::prefetch_miss unit=<name> expected=<name>                                 the order has changed

``bytes`` is the full (gathered) tensor, ``seq`` counts within the process group and is equal on all ranks.
"""

from torch.profiler import record_function

from zprof.reference_engine.collective import Collective

PREFIX = "zero::"


def launch(collective: Collective) -> record_function:
    """Around the launch of a collective, on the calling thread."""
    return record_function(f"{PREFIX}launch {_identity(collective)} {_size(collective)}")


def wait(collective: Collective) -> record_function:
    """Around blocking for a collective, on the calling thread."""
    return record_function(f"{PREFIX}wait {_identity(collective)}")


def comm(collective: Collective) -> record_function:
    """The collective itself, on the thread of a modelled link."""
    return record_function(f"{PREFIX}comm {_identity(collective)} {_size(collective)}")


def compute(phase: str, unit: str) -> record_function:
    """Time that stands for compute."""
    return record_function(f"{PREFIX}compute {phase} unit={unit}")


def copy(what: str, unit: str, size_bytes: int) -> record_function:
    """Time that stands for a copy between device and host."""
    return record_function(f"{PREFIX}copy {what} unit={unit} bytes={size_bytes}")


def prefetch_miss(unit: str, expected: str) -> record_function:
    """A unit was needed out of the recorded order."""
    return record_function(f"{PREFIX}prefetch_miss unit={unit} expected={expected}")


def _identity(collective: Collective) -> str:
    return f"{collective.kind} pg={collective.group} seq={collective.sequence} unit={collective.unit}"


def _size(collective: Collective) -> str:
    return f"bytes={collective.bytes} dtype={collective.dtype}"
