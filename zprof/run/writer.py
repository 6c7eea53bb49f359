"""Writes one rank's part of a run, alone and atomically.

Every file appears whole or not at all: temporary name, fsync, rename.  ``steps.jsonl`` is the
exception on purpose: one appended line a finished step, so that a killed rank still says how far it
came.
"""

import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.run.manifest import (
    MANIFEST_NAME,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    RunManifest,
    rank_folder,
    read_run_manifest,
    to_json,
)
from zprof.run.step_log import StepLine, to_line
from zprof.run.tables import place_table, stage_table, write_atomically


class RankWriter:
    """The folder of one rank.  Creating it drops what an earlier run left there.

    Raises:
        BadInput: something that is no run is there.
    """

    def __init__(self, run: Path, rank: int, manifest: RunManifest) -> None:
        self.folder = rank_folder(run, rank)
        self._manifest = RankManifest(
            rank=rank, status="recording", host=socket.gethostname(), run_id=manifest.run_id
        )
        self._staged: set[str] = set()
        _refuse_foreign(run, self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        if rank == 0:
            _drop_ranks_from(run, manifest.world_size)
        self.folder.mkdir(parents=True)
        write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
        self._write_manifest()

    def describe(self, manifest: RunManifest) -> None:
        """Say of the whole run what became known after it began; every rank finds the same."""
        write_atomically(self.folder.parent / MANIFEST_NAME, to_json(manifest).encode())

    def step_done(self, line: StepLine) -> None:
        """Append one line for a finished step; it survives the death of the process."""
        with (self.folder / STEPS_NAME).open("ab") as file:
            file.write(to_line(line))

    def write_table(self, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a whole table of ``zprof.run.schema``; columns must match it, but those that may be null."""
        files = self._manifest.files | {name: stage_table(self.folder, name, columns)}
        self._manifest = replace(self._manifest, files=files)
        self._staged.add(name)

    def finish(
        self,
        *,
        memory_steps: Sequence[int],
        time_steps: Sequence[int],
        gaps: Sequence[Gap],
        status: str,
        memory_mode: str = "",
    ) -> None:
        """Name the tables in ``rank.json``; only then does a reader use them."""
        self._manifest = replace(
            self._manifest,
            status=status,
            memory_steps=tuple(memory_steps),
            time_steps=tuple(time_steps),
            gaps=tuple(gaps),
            memory_mode=memory_mode,
        )
        self._write_manifest()
        while self._staged:
            place_table(self.folder, self._staged.pop())

    def _write_manifest(self) -> None:
        write_atomically(self.folder / RANK_NAME, to_json(self._manifest).encode())


def _refuse_foreign(run: Path, folder: Path) -> None:
    """Never delete what zprof did not write: others use names like ``rank00000`` too."""
    if folder.exists() and not (folder / RANK_NAME).is_file():
        raise BadInput(f"{folder}: exists and is not of a run", hint="name another folder for the run")
    if (run / MANIFEST_NAME).exists():
        read_run_manifest(run)


def _drop_ranks_from(run: Path, world_size: int) -> None:
    """Remove what an earlier, larger job left: its ranks are none of this run."""
    for folder in run.glob("rank[0-9][0-9][0-9][0-9][0-9]"):
        number = int(folder.name.removeprefix("rank"))
        if number >= world_size and (folder / RANK_NAME).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def place_rank(run: Path, provisional: Path, manifest: RankManifest) -> None:
    """Make a folder of tables, written before its rank was known, that rank's part of ``run``.

    Raises:
        OSError: it cannot be moved.
    """
    folder = rank_folder(run, manifest.rank)
    provisional.rename(folder)
    (folder / RANK_NAME).write_text(to_json(manifest), encoding="utf-8")
