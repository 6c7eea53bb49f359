"""Read the tables of a rank's flight recorder as columns, and its stacks when they are asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zprof.analysis.hang.flight import (
    FLIGHT,
    FLIGHT_GROUP,
    FLIGHT_STACK,
    FLIGHT_THREAD,
    Integers,
)
from zprof.analysis.hang.signatures import Signatures
from zprof.model.findings import SourceLocation
from zprof.run.reader import Run

_COLUMNS = (
    "record_id",
    "group",
    "backend",
    "operation",
    "is_p2p",
    "sequence",
    "p2p_sequence",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "state",
    "is_retired",
    "created_ns",
    "started_ns",
    "completed_ns",
    "stack",
)


def read_columns(run: Run, rank: int) -> dict[str, Any]:
    """Return the columns of the rank's entries, in the order in which they were entered; none: empty ones."""
    import pyarrow as pa

    from zprof.run.schema import TABLES

    table: Any = (
        run.table(rank, FLIGHT, _COLUMNS)
        if run.has_table(rank, FLIGHT)
        else TABLES[FLIGHT].empty_table().select(_COLUMNS)
    )
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        column = table[name]
        if pa.types.is_dictionary(column.type):
            columns[name] = TextColumn(column)
        elif pa.types.is_boolean(column.type):
            columns[name] = column.to_numpy().astype(bool)
        else:
            filled = column.fill_null(-1) if column.null_count else column
            columns[name] = filled.to_numpy().astype(np.int64, copy=False)
    return columns


def read_group_rows(run: Run, rank: int) -> list[tuple[str, str, str, int | None, int | None]]:
    """Return name, description, ranks, last enqueued and last completed of each group."""
    if not run.has_table(rank, FLIGHT_GROUP):
        return []
    columns = ("group", "description", "ranks", "last_enqueued", "last_completed")
    table = run.table(rank, FLIGHT_GROUP, columns)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


class TextColumn:
    """A column of repeated texts: a code per row, and the distinct texts."""

    def __init__(self, column: Any) -> None:
        chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        self.distinct: list[str] = chunk.dictionary.to_pylist()
        self.codes: Integers = chunk.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def __getitem__(self, row: int) -> str:
        return self.distinct[int(self.codes[row])]

    def list_texts(self, rows: Any) -> list[str]:
        """Return the texts of some rows."""
        return list(map(self.distinct.__getitem__, self.codes[rows].tolist()))

    def is_value(self, text: str) -> Any:
        """Return a mask of the rows with this text."""
        return self.codes == self.distinct.index(text) if text in self.distinct else self.codes < 0

    def map_codes(self, numbers: list[int]) -> Integers:
        """Return a number per row, given one per distinct text."""
        return np.asarray(numbers, dtype=np.int64)[self.codes] if numbers else self.codes


class Stacks(Mapping[int, tuple[SourceLocation, ...]]):
    """The stacks of a rank by number, innermost frame first; frames are made when a stack is asked for."""

    def __init__(self, run: Run, rank: int) -> None:
        self._starts: dict[int, tuple[int, int]] = {}
        self._frames: list[tuple[str, int, str]] = []
        if not run.has_table(rank, FLIGHT_STACK):
            return
        table = run.table(rank, FLIGHT_STACK)
        stack, depth = table["stack"].to_numpy(), table["depth"].to_numpy()
        order = np.lexsort((depth, stack))
        files, functions = TextColumn(table["file"]), TextColumn(table["function"])
        lines = table["line"].to_numpy()[order].tolist()
        self._frames = list(zip(files.list_texts(order), lines, functions.list_texts(order), strict=True))
        numbers, starts = np.unique(stack[order], return_index=True)
        ends = np.append(starts[1:], len(stack))[: len(starts)]
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        self._starts = dict(zip(numbers.tolist(), places, strict=True))

    def __getitem__(self, number: int) -> tuple[SourceLocation, ...]:
        return tuple(
            SourceLocation(file=file, line=line, function=function)
            for file, line, function in self._frames[slice(*self._starts[number])]
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def number_lines(self, signatures: Signatures) -> dict[int, int]:
        """Return the number of the innermost line of the user's code in each stack that has one."""
        lines = {}
        for number, (start, end) in self._starts.items():
            found = (signatures.number_frame(*frame) for frame in self._frames[start:end])
            lines[number] = next((line for line in found if line >= 0), -1)
        return lines


def read_main_stack(
    run: Run, rank: int, stacks: Mapping[int, tuple[SourceLocation, ...]]
) -> tuple[SourceLocation, ...]:
    """Return the frames of the main thread, innermost first; empty if no watch saved them."""
    if not run.has_table(rank, FLIGHT_THREAD):
        return ()
    rows = run.table(rank, FLIGHT_THREAD).to_pylist()
    return next((stacks.get(row["stack"], ()) for row in rows if row["is_main"]), ())


def is_in_operation(stack: tuple[SourceLocation, ...]) -> bool | None:
    """Return True if a thread stands in torch.distributed; None if in a backward, which may wait for it."""
    files = [frame.file.replace("\\", "/") for frame in stack]
    if any("/torch/distributed/" in file and "/elastic/" not in file for file in files):
        return True
    return None if any("/torch/autograd/" in file for file in files) else False
