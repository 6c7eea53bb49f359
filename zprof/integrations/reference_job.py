"""A recorded training run of the reference engine on ranks of this machine, seen from the parent.

Needs no torch.  The ranks run ``zprof.integrations.reference_rank``, which reads the job as JSON.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zprof.integrations.launch import RankFailed, launch
from zprof.model.errors import BadInput
from zprof.run.manifest import STEPS_NAME, rank_folder

_RANK_PROGRAM = "zprof.integrations.reference_rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceJob:
    """What to train and what to record of it.

    ``options`` are those of ``zprof.reference_engine.program.options``, by name; what is left out has its
    default.  ``run`` is None where nothing is recorded, ``outcome`` where nobody reads the losses.
    """

    world_size: int
    options: Mapping[str, Any]
    run: Path | None = None
    skip_steps: int = 2
    memory_steps: int = 2
    time_steps: int = 8
    outcome: Path | None = None

    @property
    def recorded_steps(self) -> int:
        """Steps until everything is recorded."""
        return self.skip_steps + self.memory_steps + self.time_steps

    def to_json(self) -> str:
        """The job as its ranks read it."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "ReferenceJob":
        """The job as its parent wrote it."""
        values = json.loads(text)
        paths = {name: Path(values[name]) if values[name] else None for name in ("run", "outcome")}
        return cls(**values | paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as a rank of it says: its losses, or why the settings cannot be used."""

    losses: tuple[float, ...] = ()
    refused: str = ""

    def write(self, path: Path) -> None:
        """Leave it for the parent."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Outcome":
        """What a rank left; empty where none did."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        return cls(losses=tuple(values["losses"]), refused=values["refused"])


def train(
    job: ReferenceJob,
    *,
    on_step: Callable[[int], None] = lambda steps: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> tuple[float, ...]:
    """Run the job to its end, and return the loss of every step.

    ``on_step`` hears how many steps rank 0 has finished.

    Raises:
        BadInput: the ranks found that the settings cannot be used.
        RankFailed: a rank ended with an error.
    """

    def poll() -> None:
        if job.run is not None:
            on_step(_steps_done(job.run))

    with tempfile.TemporaryDirectory(prefix="zprof-outcome-") as folder:
        job = replace(job, outcome=Path(folder) / "outcome.json")
        assert job.outcome is not None
        arguments = ["-m", _RANK_PROGRAM, job.to_json()]
        try:
            launch(arguments, world_size=job.world_size, on_poll=poll, on_start=on_start)
        except RankFailed:
            if refused := Outcome.read(job.outcome).refused:
                raise BadInput(refused, hint="zprof train --help shows the options") from None
            raise
        poll()
        return Outcome.read(job.outcome).losses


def _steps_done(run: Path) -> int:
    try:
        return (rank_folder(run, 0) / STEPS_NAME).read_bytes().count(b"\n")
    except OSError:
        return 0
