"""A recorded training run of the reference engine on ranks of this machine, seen from the parent.

Needs no torch.  The ranks run ``zprof.integrations.reference_rank``, which reads the job as JSON.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zprof.integrations.launch import launch
from zprof.run.manifest import STEPS_NAME, rank_folder

_RANK_PROGRAM = "zprof.integrations.reference_rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceJob:
    """What to train and what to record of it.

    ``options`` are those of ``zprof.reference_engine.program.options``, by name; what is left out has its
    default.  ``run`` is None where nothing is recorded.
    """

    world_size: int
    options: Mapping[str, Any]
    run: Path | None = None
    skip_steps: int = 2
    memory_steps: int = 2
    time_steps: int = 8

    @property
    def recorded_steps(self) -> int:
        """Steps until everything is recorded."""
        return self.skip_steps + self.memory_steps + self.time_steps

    def to_json(self) -> str:
        """The job as its ranks read it."""
        return json.dumps(asdict(self) | {"run": str(self.run) if self.run else None})

    @classmethod
    def from_json(cls, text: str) -> "ReferenceJob":
        """The job as its parent wrote it."""
        values = json.loads(text)
        return cls(**values | {"run": Path(values["run"]) if values["run"] else None})


def train(
    job: ReferenceJob,
    *,
    on_step: Callable[[int], None] = lambda steps: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> None:
    """Run the job to its end; ``on_step`` hears how many steps rank 0 has finished.

    Raises:
        RankFailed: a rank ended with an error.
    """

    def poll() -> None:
        if job.run is not None:
            on_step(_steps_done(job.run))

    arguments = ["-m", _RANK_PROGRAM, job.to_json()]
    launch(arguments, world_size=job.world_size, on_poll=poll, on_start=on_start)
    poll()


def _steps_done(run: Path) -> int:
    try:
        return (rank_folder(run, 0) / STEPS_NAME).read_bytes().count(b"\n")
    except OSError:
        return 0
