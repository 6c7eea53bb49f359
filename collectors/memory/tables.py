"""Build the tables ``alloc``, ``role``, ``mark`` and ``stack`` from the logs of a window after it has ended.

Python stacks are symbolized here: while the program trains, only code objects and positions are collected, in
0.3 us.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zprof.collectors.memory.allocator_events import Allocation
from zprof.collectors.memory.log import Birth, MemoryLog
from zprof.collectors.memory.phases import PhaseTracker
from zprof.collectors.torch_private import symbolize_stacks
from zprof.model.training import Phase

#: Frames kept per stack, innermost first.
MAX_FRAMES = 24
_BATCH = 1000
_PACKAGE = Path(__file__).parents[2]  # not resolved: frames have the path that the interpreter uses
#: Code that records and starts the program. The reference engine counts as a program.
_OWN_FILES = (
    *(f"{_PACKAGE}/{part}" for part in ("collectors/", "integrations/", "cli/", "__main__.py")),
    "<frozen runpy>",
)
#: torch's frames between a module's call and its forward, and between an operator and a dispatch mode.
_TORCH_FRAMES = (
    ("torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl", "inner"})),
    ("torch/_ops.py", frozenset({"__call__", "handler"})),
    ("torch/utils/_python_dispatch.py", None),
)

Frame = tuple[str, int, str]


class AllocationStacks:
    """Number the stacks of births, and build the table ``stack``."""

    def __init__(self) -> None:
        self._numbers: dict[Sequence[Frame], int] = {}
        self._number_by_generation: dict[int, int] = {}

    def read(self, births: Iterable[Birth]) -> None:
        """Symbolize the frames of all births, in batches: symbolized stacks are large."""
        gathered = [(birth.generation, birth.stack) for birth in births if birth.stack is not None]
        for start in range(0, len(gathered), _BATCH):
            batch = gathered[start : start + _BATCH]
            symbolized = symbolize_stacks([stack for _, stack in batch])
            for (generation, _), frames in zip(batch, symbolized, strict=True):
                program_frames = tuple(itertools.islice(filter_program_frames(frames), MAX_FRAMES))
                if program_frames:
                    self._number_by_generation[generation] = self._numbers.setdefault(
                        program_frames, len(self._numbers)
                    )

    def get_number(self, generation: int) -> int | None:
        """Return the number of the allocation's stack, or None."""
        return self._number_by_generation.get(generation)

    def table(self) -> dict[str, list[Any]]:
        """Return the table ``stack``: one row per frame."""
        rows = [
            (number, depth, *frame)
            for frames, number in self._numbers.items()
            for depth, frame in enumerate(frames)
        ]
        names = ("stack", "depth", "file", "line", "function")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def filter_program_frames(frames: Iterable[Mapping[str, Any]]) -> Iterable[Frame]:
    """Yield frames (file, line, function) without frames of the recorder and of torch's path to it."""
    for frame in frames:
        file, function = str(frame["filename"]), str(frame["name"])
        if not file.startswith(_OWN_FILES) and not _is_internal(file, function):
            yield file, int(frame["line"]), function


def _is_internal(file: str, function: str) -> bool:
    return any(
        file.endswith(suffix) and (names is None or function in names) for suffix, names in _TORCH_FRAMES
    )


TableColumns = dict[str, list[Any]]


def build_alloc_table(
    log: MemoryLog,
    phases: PhaseTracker,
    module_names: Mapping[int, str],
    allocations: Iterable[Allocation],
    stacks: AllocationStacks,
) -> TableColumns:
    """Return the table ``alloc``: storage lifetimes first, then the allocator's blocks."""
    deaths = dict(log.deaths)
    rows = [_make_storage_row(birth, deaths, phases, module_names, stacks) for birth in log.births()]
    rows += [_make_allocator_row(block) for block in allocations]
    names = (
        "generation", "source", "device", "address", "bytes", "allocated_ns", "freed_ns",
        "before_window", "operator", "phase", "module", "thread", "stack",
    )  # fmt: skip
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def build_role_table(log: MemoryLog) -> TableColumns:
    """Return the table ``role``: one row per claim, then one per claim that was dropped."""
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


def build_mark_table(log: MemoryLog) -> TableColumns:
    """Return the phases as rows of the table ``mark``: one row per start of a phase."""
    return {
        "time_ns": [time_ns for time_ns, _ in log.phases],
        "kind": ["phase"] * len(log.phases),
        "number": [0] * len(log.phases),
        "name": [phase.value for _, phase in log.phases],
    }


def _make_storage_row(
    birth: Birth,
    deaths: Mapping[int, int],
    phases: PhaseTracker,
    module_names: Mapping[int, str],
    stacks: AllocationStacks,
) -> Sequence[Any]:
    module = birth.module
    if isinstance(module, int):
        module = phases.find_module(module)
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
        module_names.get(birth.generation, module),
        None,
        stacks.get_number(birth.generation),
    )


def _make_allocator_row(block: Allocation) -> Sequence[Any]:
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
