"""From the logs of a window to the tables ``alloc``, ``role`` and ``mark`` of ``zprof.run.schema``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zprof.collectors.memory.allocators.events import Allocation
from zprof.collectors.memory.lives.log import Birth, MemoryLog
from zprof.collectors.memory.lives.phases import PhaseTracker
from zprof.collectors.memory.lives.stacks import Stacks
from zprof.model.phases import Phase

Columns = dict[str, list[Any]]


def alloc_table(
    log: MemoryLog,
    phases: PhaseTracker,
    module_of: Mapping[int, str],
    allocations: Iterable[Allocation],
    stacks: Stacks,
) -> Columns:
    """Lives of storages first, then the allocator's blocks."""
    deaths = dict(log.deaths)
    rows = [_storage_row(birth, deaths, phases, module_of, stacks) for birth in log.births()]
    rows += [_allocator_row(block) for block in allocations]
    names = (
        "generation", "source", "device", "address", "bytes", "allocated_ns", "freed_ns",
        "before_window", "operator", "phase", "module", "thread", "stack",
    )  # fmt: skip
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def role_table(log: MemoryLog) -> Columns:
    """One row for each claim, then one for each that was given up."""
    rows: list[Sequence[Any]] = [
        (claim.generation, claim.time_ns, claim.role.tenant.value, claim.role.sub, True, claim.backdated,
         claim.role.via)
        for claim in log.claims()
    ]  # fmt: skip
    rows += [
        (generation, time_ns, tenant.value, "", False, False, "scan")
        for generation, time_ns, tenant in log.drop_rows
    ]
    names = ("generation", "time_ns", "tenant", "sub", "gained", "backdated", "via")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def mark_table(log: MemoryLog) -> Columns:
    """One row where a phase begins."""
    return {
        "time_ns": [time_ns for time_ns, _ in log.phases],
        "kind": ["phase"] * len(log.phases),
        "number": [0] * len(log.phases),
        "name": [phase.value for _, phase in log.phases],
    }


def _storage_row(
    birth: Birth,
    deaths: Mapping[int, int],
    phases: PhaseTracker,
    module_of: Mapping[int, str],
    stacks: Stacks,
) -> Sequence[Any]:
    module = birth.module
    if isinstance(module, int):
        module = phases.module_of(module)
    return (
        birth.generation,
        "foreign" if birth.foreign else "storage",
        str(birth.device),
        birth.address,
        birth.bytes,
        birth.time_ns,
        deaths.get(birth.generation),
        birth.before_window,
        None if birth.operator is None else str(birth.operator),
        birth.phase.value,
        module_of.get(birth.generation, module),
        None,
        stacks.of(birth.generation),
    )


def _allocator_row(block: Allocation) -> Sequence[Any]:
    return (
        -1,
        "profiler",
        block.device,
        block.address,
        block.bytes,
        block.allocated_ns,
        block.freed_ns,
        False,
        block.operator,
        Phase.OTHER.value,
        None,
        block.thread,
        None,
    )
