"""Build the tables ``alloc``, ``role``, ``mark`` and ``stack`` from the logs of a window after it has ended.

Python stacks are symbolized here: while the program trains, only code objects and positions are collected, in
0.3 us.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zprof.collectors.record.memory.allocator_events import BlockLifetime
from zprof.collectors.record.memory.log import Birth, StorageRole
from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.torch_private import symbolize_stacks
from zprof.model.tenants import Tenant
from zprof.model.training import Phase

#: Frames kept per stack, innermost first.
MAX_FRAMES = 24
_BATCH = 1000
_PACKAGE = Path(__file__).parents[3]  # not resolved: frames have the path that the interpreter uses
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
_ALLOC_COLUMNS = (
    "generation", "source", "device", "address", "bytes", "allocated_ns", "freed_ns",
    "before_window", "operator", "phase", "module", "thread", "stack",
)  # fmt: skip
_FREED_NS, _MODULE = _ALLOC_COLUMNS.index("freed_ns"), _ALLOC_COLUMNS.index("module")


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

    def take_number(self, generation: int) -> int | None:
        """Return the number of the allocation's stack, or None, and forget it."""
        return self._number_by_generation.pop(generation, None)

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
    """Yield frames (file, line, function), without the recorder's own and the torch frames that lead to
    it.
    """
    for frame in frames:
        file, function = str(frame["filename"]), str(frame["name"])
        if not file.startswith(_OWN_FILES) and not any(
            file.endswith(suffix) and (names is None or function in names) for suffix, names in _TORCH_FRAMES
        ):
            yield file, int(frame["line"]), function


TableColumns = dict[str, list[Any]]


class StorageRows:
    """Rows of ``alloc`` for storages that have not ended, by generation."""

    def __init__(self, phases: PhaseTracker, module_names: dict[int, str], stacks: AllocationStacks) -> None:
        self._phases, self._module_names, self._stacks = phases, module_names, stacks
        self._open: dict[int, list[Any]] = {}

    def add(self, births: Iterable[Birth]) -> None:
        """Add the rows of new storages."""
        for birth in births:
            module = birth.module
            if isinstance(module, int):
                module = self._phases.find_module(module)
            self._open[birth.generation] = [
                birth.generation,
                "foreign" if birth.foreign else "storage",
                str(birth.device),
                birth.address,
                birth.bytes,
                birth.time_ns,
                None,
                birth.before_window,
                None if birth.operator is None else str(birth.operator),
                birth.phase.value,
                module,
                None,
                self._stacks.take_number(birth.generation),
            ]

    def take_ended(self, deaths: Mapping[int, int]) -> list[list[Any]]:
        """Return the rows of the storages that ended, by generation, and forget them."""
        ended = sorted(deaths.keys() & self._open.keys())
        for generation in ended:
            self._open[generation][_FREED_NS] = deaths[generation]
            self._add_module(generation)
            self._module_names.pop(generation, None)
        return [self._open.pop(generation) for generation in ended]

    def list_open(self) -> list[list[Any]]:
        """Return the rows of the storages that have not ended, by generation."""
        for generation in self._open:
            self._add_module(generation)
        return list(self._open.values())

    def _add_module(self, generation: int) -> None:
        row = self._open[generation]
        row[_MODULE] = self._module_names.get(generation, row[_MODULE])


def build_alloc_table(storages: Sequence[Sequence[Any]], blocks: Iterable[BlockLifetime]) -> TableColumns:
    """Return the table ``alloc``: storage lifetimes first, then the allocator's blocks."""
    rows = [
        *storages,
        *(
            (
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
            for block in blocks
        ),
    ]
    return {name: [row[index] for row in rows] for index, name in enumerate(_ALLOC_COLUMNS)}


def build_role_table(
    claims: Iterable[tuple[int, int, StorageRole, bool]], drops: Iterable[tuple[int, int, Tenant]]
) -> TableColumns:
    """Return the table ``role``: one row per claim, then one per claim that was dropped."""
    rows: list[Sequence[Any]] = [
        (generation, time_ns, role.tenant.value, role.sub, True, backdated, role.via)
        for generation, time_ns, role, backdated in claims
    ]
    rows += [
        (generation, time_ns, tenant.value, "", False, False, "scan") for generation, time_ns, tenant in drops
    ]
    names = ("generation", "time_ns", "tenant", "sub", "gained", "backdated", "via")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def build_mark_table(phases: Sequence[tuple[int, Phase]]) -> TableColumns:
    """Return the phases as rows of the table ``mark``: one row per start of a phase."""
    return {
        "time_ns": [time_ns for time_ns, _ in phases],
        "kind": ["phase"] * len(phases),
        "number": [0] * len(phases),
        "name": [phase.value for _, phase in phases],
    }
