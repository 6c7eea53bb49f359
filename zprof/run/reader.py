"""Reads a run: lazy, validated, read-only.

Nothing in a run is trusted: schemas, row counts and checksums are checked before a table is used, and
a table that would not fit in memory is refused by its declared size.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import (
    STEPS_NAME,
    RankManifest,
    RunManifest,
    TableFile,
    rank_folder,
    read_rank_manifest,
    read_run_manifest,
)
from zprof.run.plain_file import open_plain
from zprof.run.schema import TABLES

_MAX_ROWS = 50_000_000
_MAX_RANKS = 1 << 20
_RANK_FOLDER = re.compile(r"rank(\d{5}|[1-9]\d{5,6})")
#: What a table may unpack to: texts that repeat are kept once, so that few rows can have long ones.
_MAX_TEXT_BYTES = 64 << 20
_MAX_ROW_BYTES = 1 << 10
#: Of the log of steps; its last whole line is in there.
_LAST_LINES_BYTES = 1 << 16


class Run:
    """A recording on disk.  Opening reads the manifests only; tables load when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadInput(f"{self.path}: no such run", hint="give the folder that a recording made")
        self.manifest: RunManifest = read_run_manifest(self.path)
        if not (isinstance(self.manifest.world_size, int) and 0 < self.manifest.world_size <= _MAX_RANKS):
            raise BadInput(f"{self.path}: impossible world size", hint="record the run again")

    def described(self, training: TrainingFacts) -> "Run":
        """The same run with other facts of its program than its manifest has."""
        other = copy(self)
        other.manifest = replace(self.manifest, training=training)
        return other

    @cached_property
    def rank_manifests(self) -> dict[int, RankManifest]:
        """Manifests of the ranks whose tables are on disk."""
        found = {rank: self._found(rank) for rank in self._folders()}
        return {rank: m for rank, m in found.items() if m is not None and m.status != "recording"}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that can be loaded."""
        return tuple(self.rank_manifests)

    def gaps(self) -> tuple[Gap, ...]:
        """What the recorders could not measure, and the ranks that are missing."""
        found = list(self.manifest.gaps)
        found += [
            replace(gap, rank=rank) if gap.rank is None else gap
            for rank, manifest in self.rank_manifests.items()
            for gap in manifest.gaps
        ]
        absent = [rank for rank in range(self.manifest.world_size) if rank not in self.rank_manifests]
        found += (
            map(self._missing, absent) if self.manifest.source == "recording" else self._not_given(absent)
        )
        found += [self._cut_short(rank) for rank, m in self.rank_manifests.items() if m.status == "partial"]
        return tuple(found)

    def table(self, rank: int, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One table of one rank as Arrow, checked against schema, row count and checksum.

        Raises:
            BadInput: the rank or table is not there, damaged, or not what the manifest says.
        """
        file = self._table_file(rank, name)
        path = rank_folder(self.path, rank) / f"{name}.parquet"
        try:
            _check_digest(path, file)
            parquet = pq.ParquetFile(path)
            _check_table(path, parquet, name, file)
            return _read(parquet, name, columns)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0][:120]
            raise BadInput(f"{path}: cannot be read ({reason})", hint="record the run again") from None

    def has_table(self, rank: int, name: str) -> bool:
        """Whether a rank recorded this table."""
        manifest = self.rank_manifests.get(rank)
        return manifest is not None and name in manifest.files

    def frame(self, rank: int, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One table as a DataFrame; columns that may be null become pandas' nullable Int64."""
        return as_frame(self.table(rank, name, columns))

    def events(self, rank: int) -> pd.DataFrame:
        """Kernels, operators and annotations of one rank."""
        return self.frame(rank, "events")

    def collectives(self) -> pd.DataFrame:
        """The collectives of all ranks that timed any, with a ``rank`` column."""
        timed = [rank for rank in self.ranks if self.has_table(rank, "collectives")]
        frames = [self.frame(rank, "collectives").assign(rank=rank) for rank in timed]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def memory(self, rank: int) -> pd.DataFrame:
        """Lives of memory blocks of one rank."""
        return self.frame(rank, "alloc")

    def last_step(self, rank: int) -> int | None:
        """The last step that a rank finished, also where it was killed; None where it finished none."""
        path = rank_folder(self.path, rank) / STEPS_NAME
        try:
            with open_plain(path) as content:
                content.seek(max(0, os.fstat(content.fileno()).st_size - _LAST_LINES_BYTES))
                lines = content.read(_LAST_LINES_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return None
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
        return None

    def _folders(self) -> list[int]:
        """The ranks of this run that have a folder: a job may have many more."""
        numbers = [int(match[1]) for name in os.listdir(self.path) if (match := _RANK_FOLDER.fullmatch(name))]
        return sorted(number for number in numbers if number < self.manifest.world_size)

    def _found(self, rank: int) -> RankManifest | None:
        """What a rank left of this run; a rank of an earlier run on the same path is none of it."""
        if not rank_folder(self.path, rank).is_dir():
            return None
        manifest = read_rank_manifest(self.path, rank)
        return manifest if manifest.run_id == self.manifest.run_id else None

    def _not_given(self, absent: Sequence[int]) -> list[Gap]:
        """One gap for all ranks of which no file was imported."""
        reason = f"no file of {len(absent)} of {self.manifest.world_size} ranks was given"
        gap = Gap(what="ranks missing", reason=reason, remedy="import the files of all ranks together")
        return [gap] if absent else []

    def _missing(self, rank: int) -> Gap:
        if self._found(rank) is None:
            reason = "this rank wrote nothing"
        else:
            last = self.last_step(rank)
            when = "before its first step" if last is None else f"after step {last}"
            reason = f"it was killed, or is still running: its recording ends {when}"
        return Gap(
            what="rank missing",
            rank=rank,
            reason=reason,
            remedy="look at this rank's own log; record again with all ranks alive",
        )

    def _cut_short(self, rank: int) -> Gap:
        last = self.last_step(rank)
        return Gap(
            what="rank cut short",
            rank=rank,
            reason=f"it was killed, or is still running: its recording ends after step {last}",
            remedy="look at this rank's own log; what it had written before is used",
        )

    def _table_file(self, rank: int, name: str) -> TableFile:
        if rank not in self.rank_manifests:
            raise BadInput(f"{self.path}: rank {rank} is not in this run", hint=f"loaded: {self.ranks}")
        files = self.rank_manifests[rank].files
        if name not in files:
            raise BadInput(f"{self.path}: rank {rank} has no table {name!r}", hint="record the run again")
        return files[name]


def as_frame(table: pa.Table) -> pd.DataFrame:
    """A table as a DataFrame; columns that may be null become pandas' nullable Int64."""
    nullable = {field.name for field in table.schema if field.nullable and field.type == pa.int64()}
    frame = table.drop_columns(sorted(nullable)).to_pandas()
    for column in nullable:
        frame[column] = table.column(column).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return pd.DataFrame(frame[table.column_names])


def load(path: str | Path) -> Run:
    """Open a run directory."""
    return Run(path)


def _check_digest(path: Path, file: TableFile) -> None:
    with open_plain(path) as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        raise BadInput(
            f"{path}: damaged, its checksum is not the one that was written",
            hint="copy the run again, or record it again",
        )


def _check_table(path: Path, parquet: pq.ParquetFile, name: str, file: TableFile) -> None:
    if parquet.metadata.num_rows != file.rows or not 0 <= file.rows <= _MAX_ROWS:
        raise BadInput(f"{path}: its row count is not the one that was written", hint="record the run again")
    groups = (parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups))
    if sum(group.total_byte_size for group in groups) > _MAX_TEXT_BYTES + _MAX_ROW_BYTES * file.rows:
        raise BadInput(f"{path}: unpacks to more than its rows can hold", hint="record the run again")
    have = parquet.schema_arrow
    for want in TABLES[name]:
        index = have.get_field_index(want.name)
        if index < 0 and want.nullable:
            continue  # written before the column came to be
        if index < 0 or have.field(index).type != want.type:
            raise BadInput(f"{path}: column {want.name!r} is not as {name} needs it", hint="record again")


def _read(parquet: pq.ParquetFile, name: str, columns: Sequence[str] | None) -> pa.Table:
    """The wanted columns; those that the file is too old to have are null."""
    wanted = list(columns) if columns else TABLES[name].names
    have = set(parquet.schema_arrow.names)
    table = parquet.read(columns=[column for column in wanted if column in have])
    for column in wanted:
        if column not in have:
            field = TABLES[name].field(column)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(wanted)
