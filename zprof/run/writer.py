"""Write one rank's part of a run, independently and atomically: Parquet tables, then the manifest.

Every file appears complete or not at all (temporary name, fsync, rename), except ``steps.jsonl``: one line is
appended per finished step, so the progress of a killed rank is known. A table that is recorded over many
steps is written in parts while the program runs, and its parts become one file when its window ends.

Ascending times are stored as differences, other integers with byte stream split, repeated values with a
dictionary. On real traces this takes half the size of Parquet's defaults.
"""

import hashlib
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.gaps import Gap
from zprof.run.files import (
    get_temporary_path,
    lock_folder,
    remove_on_error,
    sync_and_rename,
    write_atomically,
)
from zprof.run.manifest import (
    MANIFEST_NAME,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    RunManifest,
    StepLine,
    TableFile,
    TablePart,
    encode_step,
    get_part_path,
    get_staged_path,
    rank_folder,
    read_rank_manifest,
    read_run_manifest,
    to_json,
)
from zprof.run.schema import TABLES
from zprof.run.table_reader import make_array

#: The rows of a table are sorted by these columns, so they ascend.
_ASCENDING = frozenset({"start_ns", "time_ns"})
_FEW_VALUES = frozenset({"thread", "stream", "bytes", "peer_rank"})
#: Tables for which the encodings were measured.
_TRACE_TABLES = frozenset({"events", "collectives", "mark"})
#: Another process holds the lock of the folder for milliseconds, unless it is stopped.
_MAX_LOCK_WAIT_S = 5.0
#: Small tables of a thousand ranks are read together: for them, time matters more than size.
_FLIGHT_TABLES = frozenset({"flight", "flight_group", "flight_stack"})


class RankWriter:
    """Writer of the folder of one rank, usable from several threads.

    While this process does not respond, another may save the rank; the tables of that process stay until this
    writer replaces them. Creating a writer deletes leftovers of an earlier run.

    Raises:
        BadInput: The path contains something other than a run.
    """

    def __init__(self, run: Path, rank: int, manifest: RunManifest) -> None:
        self.folder = rank_folder(run, rank)
        self._manifest = RankManifest(
            rank=rank, status="recording", host=socket.gethostname(), run_id=manifest.run_id
        )
        self._staged: set[str] = set()
        self._parts: dict[str, list[TablePart]] = {}
        self._tails: dict[str, TablePart] = {}
        self._obsolete: list[Path] = []
        self._next_part = 0
        self._lock = threading.RLock()
        self._listed: Mapping[str, TableFile] = {}
        # Raise BadInput instead of deleting another program's files, which may have names like ``rank00000``.
        if self.folder.exists() and not (self.folder / RANK_NAME).is_file():
            raise BadInput(
                f"{self.folder}: exists and does not belong to a run",
                hint="choose another folder for the run",
            )
        if (run / MANIFEST_NAME).exists():
            read_run_manifest(run)
        if self.folder.exists():
            with lock_folder(self.folder, _MAX_LOCK_WAIT_S):
                shutil.rmtree(self.folder, ignore_errors=True)
        if rank == 0:
            # Remove rank folders left over from an earlier, larger job.
            for folder in run.glob("rank[0-9][0-9][0-9][0-9][0-9]"):
                number = int(folder.name.removeprefix("rank"))
                if number >= manifest.world_size and (folder / RANK_NAME).is_file():
                    shutil.rmtree(folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)  # another rank may save this one at this moment
        write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
        self._write_manifest()

    def describe(self, manifest: RunManifest) -> None:
        """Rewrite the run manifest with facts learned after the start, equal on every rank."""
        write_atomically(self.folder.parent / MANIFEST_NAME, to_json(manifest).encode())

    def step_done(self, line: StepLine) -> None:
        """Append one line for a finished step; it survives if the process is killed."""
        with (self.folder / STEPS_NAME).open("ab") as file:
            file.write(encode_step(line))

    def write_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a complete table of ``zprof.run.schema``; only nullable columns may be missing."""
        with self._lock:
            files = self._manifest.files | {name: stage_table(self.folder, name, columns)}
            self._manifest = replace(self._manifest, files=files)
            self._staged.add(name)

    def append(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write rows that are complete as the next part of a table."""
        with self._lock:
            part = self._write_part(name, columns)
            if part is not None:
                self._parts.setdefault(name, []).append(part)

    def replace_tail(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write the rows of a table that may still change, replacing those of the last call."""
        with self._lock:
            previous, tail = self._tails.pop(name, None), self._write_part(name, columns)
            if previous is not None:
                self._obsolete.append(self._get_part_path(name, previous))
            if tail is not None:
                self._tails[name] = tail

    def merge_parts(self, name: str, last_rows: Mapping[str, Sequence[Any]]) -> None:
        """Write the last rows of a table, then join its parts into one file, one part in memory at a time.

        Raises:
            OSError: The file cannot be written; the parts stay.
        """
        with self._lock:
            self.append(name, last_rows)
            parts = self._parts.get(name, [])
            tail = self._tails.pop(name, None)
            if tail is not None:
                self._obsolete.append(self._get_part_path(name, tail))
            paths = [self._get_part_path(name, part) for part in parts]
            files = self._manifest.files | {name: _stage_parts(self.folder, name, paths)}
            self._manifest = replace(self._manifest, files=files)
            self._staged.add(name)
            self._obsolete += paths
            self._parts.pop(name, None)

    def list_unmerged(self) -> list[str]:
        """Return the names of the tables that are still in parts."""
        return [*self._parts, *(name for name in self._tails if name not in self._parts)]

    def finish(
        self,
        *,
        memory_steps: Sequence[int],
        time_steps: Sequence[int],
        gaps: Sequence[Gap],
        status: str,
        memory_mode: str = "",
    ) -> None:
        """List the tables in ``rank.json``; readers use them only after that."""
        with self._lock:
            self._manifest = replace(
                self._manifest,
                status=status,
                memory_steps=tuple(memory_steps),
                time_steps=tuple(time_steps),
                gaps=tuple(gaps),
                memory_mode=memory_mode,
                parts={
                    name: (*self._parts.get(name, ()), *([self._tails[name]] if name in self._tails else ()))
                    for name in {*self._parts, *self._tails}
                },
            )
            self._place_tables()
            while self._obsolete:
                self._obsolete.pop().unlink(missing_ok=True)

    def publish(self, gaps: Sequence[Gap]) -> None:
        """List the tables written so far, with additional gaps; the recording continues, or has ended."""
        with self._lock:
            has_begun = self._manifest.status != "recording"
            self._manifest = replace(
                self._manifest,
                status=self._manifest.status if has_begun else "partial",
                gaps=(*self._manifest.gaps, *gaps),
            )
            self._place_tables()

    def _place_tables(self) -> None:
        """Write the manifest, and place the tables written since the last manifest."""
        with lock_folder(self.folder, _MAX_LOCK_WAIT_S):
            self._adopt_tables()
            self._write_manifest()
            while self._staged:
                place_table(self.folder, self._staged.pop())

    def _adopt_tables(self) -> None:
        """List the tables that another process wrote, unless they are about to be replaced."""
        try:
            found = read_rank_manifest(self.folder.parent, self._manifest.rank)
        except BadInput:
            return
        adopted = {
            name: file
            for name, file in found.files.items()
            if name not in self._staged and file != self._listed.get(name)
        }
        if adopted and found.run_id == self._manifest.run_id:
            self._manifest = replace(self._manifest, files=self._manifest.files | adopted)

    def _write_part(self, name: str, columns: Mapping[str, Sequence[Any]]) -> TablePart | None:
        """Write one part of a table; return None if it adds no rows."""
        if name in self._parts and not len(next(iter(columns.values()), ())):
            return None
        number, self._next_part = self._next_part, self._next_part + 1
        target = get_part_path(self.folder / f"{name}.parquet", number)
        with remove_on_error(get_temporary_path(target)) as temporary:
            rows = _write_parquet(temporary, name, columns)
            return TablePart(number=number, rows=rows, sha256=sync_and_rename(temporary, target))

    def _get_part_path(self, name: str, part: TablePart) -> Path:
        return get_part_path(self.folder / f"{name}.parquet", part.number)

    def _write_manifest(self) -> None:
        write_atomically(self.folder / RANK_NAME, to_json(self._manifest).encode())
        self._listed = self._manifest.files


def stage_table(folder: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> TableFile:
    """Write a table next to its final path; only nullable columns may be missing.

    The manifest that lists it is written next, and :func:`place_table` follows. A kill in between leaves
    either the older manifest with the older tables, or the new manifest, whose tables a reader finds at the
    staged path.

    Raises:
        OSError: The table cannot be written.
    """
    staged = get_staged_path(folder / f"{name}.parquet")
    with remove_on_error(get_temporary_path(staged)) as temporary:
        rows = _write_parquet(temporary, name, columns)
        return TableFile(rows=rows, sha256=sync_and_rename(temporary, staged))


def place_table(folder: Path, name: str) -> None:
    """Replace the table with the staged one.

    Raises:
        OSError: The file cannot be renamed.
    """
    target = folder / f"{name}.parquet"
    get_staged_path(target).rename(target)


def write_provisional(folder: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> TableFile:
    """Write a table of reproducible data into a folder that is not read until it is complete.

    Skips fsync, which would take half a minute for a thousand ranks.

    Raises:
        OSError: The table cannot be written.
    """
    target = folder / f"{name}.parquet"
    if name not in _FLIGHT_TABLES:
        rows = _write_parquet(target, name, columns)
        with target.open("rb") as file:
            return TableFile(rows=rows, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    # Small tables are written through memory: opening a file costs as much as writing them.
    table, sink = _fit_to_schema(columns, TABLES[name]), pa.BufferOutputStream()
    pq.write_table(table, sink, **_get_options(name))
    content = sink.getvalue()
    target.write_bytes(content)
    return TableFile(rows=int(table.num_rows), sha256=hashlib.sha256(content).hexdigest())


def _stage_parts(folder: Path, name: str, parts: Sequence[Path]) -> TableFile:
    """Write the parts of a table as the row groups of one file, like :func:`stage_table`."""
    staged, schema = get_staged_path(folder / f"{name}.parquet"), TABLES[name]
    rows = 0
    with remove_on_error(get_temporary_path(staged)) as temporary:
        # Arrow only accepts UTF-8 paths, so open files are passed.
        with temporary.open("wb") as file, pq.ParquetWriter(file, schema, **_get_options(name)) as writer:
            for part in parts:
                with part.open("rb") as content:
                    table = pq.ParquetFile(content).read()
                rows += table.num_rows
                writer.write_table(table)
        return TableFile(rows=rows, sha256=sync_and_rename(temporary, staged))


def _write_parquet(path: Path, name: str, columns: Mapping[str, Sequence[Any]] | pa.Table) -> int:
    """Write the table and return the number of rows."""
    table = _fit_to_schema(columns, TABLES[name])
    with path.open("wb") as file:
        pq.write_table(table, file, **_get_options(name))
    return int(table.num_rows)


def _get_options(name: str) -> dict[str, Any]:
    if name in _FLIGHT_TABLES:
        # Choosing an encoding per column takes longer than writing a small table.
        # The fastest encoding options for a table of at most a few thousand rows.
        encodings = (
            {
                "use_dictionary": [
                    field.name for field in TABLES[name] if pa.types.is_dictionary(field.type)
                ],
                "column_encoding": {
                    field.name: "DELTA_BINARY_PACKED" for field in TABLES[name] if field.type == pa.int64()
                },
            }
            if name == "flight"
            else {"use_dictionary": False}
        )
        return {"compression": "lz4", "write_statistics": False, **encodings}
    options = _choose_encodings(TABLES[name]) if name in _TRACE_TABLES else {}
    return {"compression": "zstd", "compression_level": 3, **options}


def _fit_to_schema(columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the types of the schema; nullable columns that are missing become null."""
    if isinstance(columns, pa.Table):
        columns = {column: columns.column(column) for column in columns.column_names}
    rows = len(next(iter(columns.values()), ()))
    present = {
        field.name: make_array(columns[field.name], field.type)
        if field.name in columns or not field.nullable
        else pa.nulls(rows, field.type)
        for field in schema
    }
    return pa.table(present, schema=schema)


def _choose_encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return the encoding options for ``pq.write_table``, by column."""
    encodings = {field.name: _choose_encoding(field) for field in schema}
    return {
        "use_dictionary": [name for name, encoding in encodings.items() if not encoding],
        "column_encoding": {name: encoding for name, encoding in encodings.items() if encoding},
    }


def _choose_encoding(field: pa.Field) -> str:
    """Return the encoding of a column; empty for a dictionary."""
    if field.type != pa.int64() or field.name in _FEW_VALUES:
        return ""
    return "DELTA_BINARY_PACKED" if field.name in _ASCENDING else "BYTE_STREAM_SPLIT"
