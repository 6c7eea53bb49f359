"""Read a run lazily, validate it, and never write to it.

Opening a run reads only its manifests; the code that reads tables is imported with the first table.

Each numeric fact has a range, and manifests with impossible numbers are rejected: no other code has to expect
a negative size or a number that does not fit into a table.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, make_missing_error, suggest_names
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.stated_mesh import check_mesh
from zprof.model.training import TrainingFacts
from zprof.run.manifest import (
    FLIGHT_RECORDER,
    MANIFEST_NAME,
    NCCL_INSPECTOR,
    OPERATION_TIMELINE,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    RunManifest,
    TableFile,
    TablePart,
    get_part_path,
    rank_folder,
    read_last_end_ns,
    read_last_lines,
    read_rank_manifest,
    read_run_manifest,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
#: Maximum retries for a table whose rank has written a newer version, or is just placing it.
_MAX_ATTEMPTS, _MIN_ATTEMPTS, _PLACING_S = 20, 2, 0.01
_RANK_FOLDER = re.compile(r"rank(\d{5}|[1-9]\d{5,6})")
#: Every number of a manifest fits into an int64 column; none is negative.
_ANY = range(1 << 63)
_COUNT = range(1, 1 << 31)
#: Far beyond any model; the product of the two fits into an int64.
_ELEMENTS = range(1 << 50)
_ELEMENT_BYTES = range(1 << 12)
#: By field name, anywhere in the manifest.
_RANGES: Mapping[str, range] = {
    "world_size": range(1, (1 << 20) + 1),
    "rank": range(1 << 20),
    "stage": range(4),
    "parameters": _ELEMENTS,
    "padding_elements": _ELEMENTS,
    "step_counters": _ELEMENTS,
    "samples_per_step": _ELEMENTS,
    "tokens_per_step": _ELEMENTS,
    "parameter_bytes": _ELEMENT_BYTES,
    "gradient_bytes": _ELEMENT_BYTES,
    "optimizer_state_bytes": _ELEMENT_BYTES,
    "communication_bytes": _ELEMENT_BYTES,
    "reduction_bytes": _ELEMENT_BYTES,
    "shard_ranks": _COUNT,
    "replica_ranks": _COUNT,
    "gathered_elements": _ELEMENTS,
    "reduced_elements": _ELEMENTS,
    "micro_batches": _COUNT,
    "model_parallel_ranks": _COUNT,
}
_MAX_DIGITS = 25
_MAX_SETTINGS, _MAX_SETTING_LENGTH = 1_000, 1_000


class Run:
    """A recording on disk. Opening it reads only the manifests; tables load on demand."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise make_missing_error(self.path)
        self.manifest: RunManifest = read_run_manifest(self.path)
        check_run_facts(self.manifest, self.path / MANIFEST_NAME)

    def described(self, training: TrainingFacts) -> Self:
        """Return a copy of the run with different training facts than in its manifest."""
        other = copy(self)
        other.manifest = replace(self.manifest, training=training)
        return other

    def select(self, ranks: Sequence[int]) -> "Run":
        """Return this run with only some of its ranks."""
        other = Run.__new__(Run)
        other.path, other.manifest = self.path, self.manifest
        other.rank_manifests = {rank: self.rank_manifests[rank] for rank in ranks}
        return other

    @cached_property
    def rank_manifests(self) -> dict[int, RankManifest]:
        """Manifests of the ranks whose tables are on disk, by rank."""
        manifests = {rank: self._read_rank(rank) for rank in self._folders()}
        return {rank: m for rank, m in manifests.items() if m is not None and m.status != "recording"}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that can be loaded."""
        return tuple(self.rank_manifests)

    def gaps(self) -> tuple[Gap, ...]:
        """List the measurements that the recorders could not make, and the missing ranks."""
        gaps = list(self.manifest.gaps)
        gaps += [
            replace(gap, rank=rank) if gap.rank is None else gap
            for rank, manifest in self.rank_manifests.items()
            for gap in manifest.gaps
        ]
        absent = [rank for rank in range(self.manifest.world_size) if rank not in self.rank_manifests]
        is_without_ranks = not self.rank_manifests and self.manifest.source in (
            FLIGHT_RECORDER,
            OPERATION_TIMELINE,
            NCCL_INSPECTOR,
        )
        if self.manifest.source == "recording":
            gaps += map(self._make_rank_gap, absent)
        elif absent and not is_without_ranks:
            gaps.append(make_gap("ranks_not_imported", missing=len(absent), ranks=self.manifest.world_size))
        gaps += [
            self._make_rank_gap(rank) for rank, m in self.rank_manifests.items() if m.status == "partial"
        ]
        return (*gaps, *self._make_columns_gap())

    def table(self, rank: int, name: str, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return one table of one rank as Arrow, checked against schema, row count and checksum.

        Raises:
            BadInput: The rank or table does not exist, is damaged, or does not match the manifest.
        """
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return self._read_table(rank, name, columns)
            except BadInput:
                is_newer = self._reread_rank(rank)
                if not self.has_table(rank, name) or (attempt >= _MIN_ATTEMPTS and not is_newer):
                    raise
                if not is_newer:
                    time.sleep(_PLACING_S)
        return self._read_table(rank, name, columns)

    def _read_table(self, rank: int, name: str, columns: Sequence[str] | None) -> "pa.Table":
        from zprof.run.table_reader import read_parts, read_table

        path = rank_folder(self.path, rank) / f"{name}.parquet"
        if parts := self._list_parts(rank, name):
            return read_parts(path, name, parts, columns)
        if rank not in self.rank_manifests:
            raise BadInput(f"{self.path}: rank {rank} is not in this run", hint=f"loaded: {self.ranks}")
        files = self.rank_manifests[rank].files
        if name not in files:
            raise BadInput(f"{self.path}: rank {rank} has no table {name!r}", hint=suggest_names(name, files))
        return read_table(path, name, files[name], columns)

    def _reread_rank(self, rank: int) -> bool:
        """Read the manifest of a rank again; return True if it is newer, and use it from now on."""
        known = self.rank_manifests.get(rank)
        manifest = self._read_rank(rank) if known is not None else None
        if manifest is None or manifest == known:
            return False
        self.rank_manifests[rank] = manifest
        return True

    def has_table(self, rank: int, name: str) -> bool:
        """Return True if a rank recorded this table."""
        manifest = self.rank_manifests.get(rank)
        return manifest is not None and (name in manifest.files or name in manifest.parts)

    def job_table(self, name: str) -> "pa.Table | None":
        """Return a table of ``JOB_TABLES`` as Arrow; None if the run has none.

        Raises:
            BadInput: The table is damaged, or does not match the manifest.
        """
        from zprof.run.table_reader import read_table

        file: TableFile | None = getattr(self.manifest, name)
        return None if file is None else read_table(self.path / f"{name}.parquet", name, file)

    def frame(self, rank: int, name: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return one table as a DataFrame; nullable int64 columns become pandas' nullable Int64."""
        from zprof.run.table_reader import as_frame

        return as_frame(self.table(rank, name, columns))

    def last_step(self, rank: int) -> int | None:
        """Return the last finished step of a rank, even if it was killed; None without steps."""
        for line in read_last_lines(rank_folder(self.path, rank) / STEPS_NAME):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
        return None

    def last_step_end_ns(self, rank: int) -> int | None:
        """Return the end time of a rank's last finished step, even if it was killed; None if unknown."""
        return read_last_end_ns(rank_folder(self.path, rank) / STEPS_NAME)

    def _folders(self) -> list[int]:
        """Return the ranks of this run that have a folder. The job may have many more ranks."""
        numbers = [int(match[1]) for name in os.listdir(self.path) if (match := _RANK_FOLDER.fullmatch(name))]
        return sorted(number for number in numbers if number < self.manifest.world_size)

    def _read_rank(self, rank: int) -> RankManifest | None:
        """Return the manifest of a rank, or None if the folder is absent or left over from an earlier run."""
        folder = rank_folder(self.path, rank)
        if not folder.is_dir() or not any(True for name in os.listdir(folder) if not name.startswith(".")):
            return None  # the rank is about to write its manifest
        manifest = read_rank_manifest(self.path, rank)
        check_rank_facts(manifest, rank, rank_folder(self.path, rank) / RANK_NAME)
        return manifest if manifest.run_id == self.manifest.run_id else None

    def _make_rank_gap(self, rank: int) -> Gap:
        """Return the gap of a rank that is missing or has a truncated recording."""
        is_loaded = rank in self.rank_manifests
        if not is_loaded and self._read_rank(rank) is None:
            return make_gap("rank_without_data", rank=rank)
        last = self.last_step(rank)
        if is_loaded:
            key = "rank_cut_short_before_steps" if last is None else "rank_cut_short_after_step"
            step, detail = None if last is None else last + 1, "killed, or still running"
            return make_gap(key, rank=rank, step=step, detail=detail, last=last)
        when = "before its first step" if last is None else f"after step {last}"
        key = "rank_missing_before_steps" if last is None else "rank_missing_after_step"
        return make_gap(key, rank=rank, detail=f"killed, or still running, {when}", last=last)

    def _make_columns_gap(self) -> list[Gap]:
        """Return one gap for all missing optional columns, whose values are unknown."""
        from zprof.run.schema import TABLES
        from zprof.run.table_reader import list_missing_columns

        columns: dict[str, None] = {}
        ranks: list[int] = []
        for rank, manifest in self.rank_manifests.items():
            missing: list[str] = []
            for name in sorted({*manifest.files, *manifest.parts} & TABLES.keys()):
                path = rank_folder(self.path, rank) / f"{name}.parquet"
                parts = [get_part_path(path, part.number) for part in self._list_parts(rank, name)]
                missing += [f"{name}.{column}" for column in list_missing_columns(parts or [path], name)]
            ranks += [rank] if missing else []
            columns |= dict.fromkeys(missing)
        if not ranks:
            return []
        only = ranks[0] if len(ranks) == 1 else None
        return [
            make_gap(
                "columns_missing",
                rank=only,
                affected=len(ranks),
                ranks=len(self.ranks),
                columns=list(columns),
            )
        ]

    def _list_parts(self, rank: int, name: str) -> tuple[TablePart, ...]:
        """Return the parts of a table whose window had not ended; empty for a complete table."""
        manifest = self.rank_manifests.get(rank)
        return manifest.parts.get(name, ()) if manifest is not None and name not in manifest.files else ()


def load(path: str | Path) -> Run:
    """Open a run directory."""
    return Run(path)


def check_run_facts(manifest: RunManifest, path: Path) -> None:
    """Check the numbers of a run's manifest.

    Raises:
        BadInput: A number is impossible (the message has its name and value), or the settings are too many or
            too long.
    """
    _check_numbers(manifest, path)
    settings = manifest.training.settings
    if len(settings) > _MAX_SETTINGS:
        raise _make_error(path, "number of settings", len(settings), f"up to {_MAX_SETTINGS}")
    longest = max((len(text) for each in settings for text in (each.name, each.value)), default=0)
    if longest > _MAX_SETTING_LENGTH:
        raise _make_error(path, "length of a setting", longest, f"up to {_MAX_SETTING_LENGTH}")
    if manifest.training.mesh:
        check_mesh(manifest.training.mesh, manifest.world_size)


def check_rank_facts(manifest: RankManifest, rank: int, path: Path) -> None:
    """Check the numbers of the manifest in the folder of ``rank``.

    Raises:
        BadInput: A number is impossible or the rank is a different one; the message has its name and value.
    """
    _check_numbers(manifest, path)
    if manifest.rank != rank:
        raise _make_error(path, "rank", manifest.rank, f"{rank}, as in the name of its folder")


def _check_numbers(manifest: RunManifest | RankManifest, path: Path) -> None:
    for name, value in _list_numbers(manifest, ""):
        limits = _RANGES.get(name.rpartition(".")[2], _ANY)
        if value not in limits:
            raise _make_error(path, name, value, f"{limits.start} to {limits.stop - 1}")


def _list_numbers(value: object, name: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers in a tree of structs with their dotted names."""
    if isinstance(value, int):
        yield name, value
    elif isinstance(value, Struct):
        for field in value.__struct_fields__:
            dotted = f"{name}.{field}" if name else field
            yield from _list_numbers(getattr(value, field), dotted)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _list_numbers(entry, f"{name}.{key}")
    elif isinstance(value, tuple):
        # Of many step numbers, checking the extremes suffices.
        is_plain = bool(value) and all(type(entry) is int for entry in value)
        for entry in (min(value), max(value)) if is_plain else value:
            yield from _list_numbers(entry, name)


def _make_error(path: Path, name: str, value: int, allowed: str) -> BadInput:
    # Python refuses to print numbers of more than a few thousand digits.
    text = str(value) if value.bit_length() < _MAX_DIGITS * 3 else f"a number of {value.bit_length()} bits"
    return BadInput(f"{path}: impossible {name}: {text} (possible: {allowed})", hint="record the run again")
