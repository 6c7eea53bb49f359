"""Launch the reference engine on this machine and record the run, from the parent process.

The parent does not need torch. The ranks run ``zprof.integrations.reference_rank``, which reads the job as
JSON, and meet at a port chosen by rank 0, because a port found free by the parent could be taken in the
meantime.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from zprof.base.errors import BadInput, ZprofError
from zprof.process.ranks import Ranks
from zprof.run.files import open_scratch_folder, remove_leftovers
from zprof.run.manifest import STEPS_NAME, rank_folder

_RANK_PROGRAM = "zprof.integrations.reference_rank"
#: Time for the other ranks to notice a failed rank and to write their recordings.
FAILURE_GRACE_S = 15.0
#: Time from SIGTERM to SIGKILL, for all ranks together.
END_GRACE_S = 5.0
#: Signals sent only by a user, a scheduler or the kernel.
_EXTERNAL_SIGNALS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU))


class ReferenceJob(Struct, frozen=True, kw_only=True):
    """Training job and the steps to record.

    ``options``: options of ``zprof.reference_engine.program.options`` by name, with defaults for the rest.
    ``run``: None if nothing is recorded. ``outcome``: None if the losses are not needed. ``meeting``:
    receives the port of rank 0; None if a launcher gives the ranks an address.
    """

    world_size: int
    options: Mapping[str, Any]
    run: Path | None = None
    skip_steps: int = 2
    memory_steps: int = 2
    time_steps: int = 8
    outcome: Path | None = None
    meeting: Path | None = None

    @property
    def recorded_steps(self) -> int:
        """Number of steps until the recording is complete."""
        return self.skip_steps + self.memory_steps + self.time_steps

    def to_json(self) -> str:
        """Return the job as JSON for its ranks."""
        return json.dumps(to_builtins(self, enc_hook=str))

    @classmethod
    def from_json(cls, text: str) -> "ReferenceJob":
        """Parse the JSON written by the parent."""
        values = json.loads(text)
        paths = {name: Path(values[name]) if values[name] else None for name in ("run", "outcome", "meeting")}
        return cls(**values | paths)


class ReferenceJobResult(Struct, frozen=True, kw_only=True):
    """Result of a run as reported by a rank: the losses, or why the settings were rejected."""

    losses: tuple[float, ...] = ()
    refused: str = ""

    def write(self, path: Path) -> None:
        """Write the outcome for the parent."""
        path.write_text(json.dumps(to_builtins(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "ReferenceJobResult":
        """Read a rank's outcome; empty if there is no file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        return cls(losses=tuple(values["losses"]), refused=values["refused"])


def train_reference(
    job: ReferenceJob,
    *,
    on_step: Callable[[int], None] = lambda steps: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> tuple[float, ...]:
    """Run the job and return the loss of every step.

    ``on_step`` receives the number of steps finished by rank 0.

    Raises:
        BadInput: the ranks rejected the settings.
        RankFailed: a rank exited with an error.
    """

    def poll() -> None:
        if job.run is None:
            return
        try:
            steps = (rank_folder(job.run, 0) / STEPS_NAME).read_bytes().count(b"\n")
        except OSError:
            steps = 0
        on_step(steps)

    remove_leftovers()
    with open_scratch_folder("outcome") as folder:
        outcome = folder / "outcome.json"
        job = replace(job, outcome=outcome, meeting=folder / "port")
        arguments = ["-m", _RANK_PROGRAM, job.to_json()]
        try:
            launch(arguments, world_size=job.world_size, on_poll=poll, on_start=on_start)
        except RankFailed:
            if refused := ReferenceJobResult.read(outcome).refused:
                raise BadInput(refused, hint="see zprof train --help") from None
            raise
        poll()
        return ReferenceJobResult.read(outcome).losses


class RankFailed(ZprofError):
    """A rank exited with an error or was killed externally; an external kill is not a zprof bug."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "", is_external: bool = False) -> None:
        super().__init__(message, hint=hint)
        if is_external:
            self.exit_code = BadInput.exit_code


def launch(
    arguments: Sequence[str],
    *,
    world_size: int,
    on_poll: Callable[[], None] = lambda: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
    failure_grace_s: float = FAILURE_GRACE_S,
    end_grace_s: float = END_GRACE_S,
) -> None:
    """Run ``python ARGUMENTS`` on every rank and wait for all ranks.

    ``on_poll`` is called while waiting. If a rank fails, the others get time to notice and to write their
    recordings before they are terminated.

    Raises:
        RankFailed: a rank exited with an error; the message contains its error line.
    """
    with open_scratch_folder("ranks") as folder:
        ranks = Ranks(
            arguments,
            world_size,
            folder,
            environment={"TMPDIR": str(folder)},  # a terminated rank cannot clean up its temporary files
            stdin=subprocess.DEVNULL,
            lead_sessions=False,
            failure_grace_s=failure_grace_s,
            end_grace_s=end_grace_s,
        )
        with ranks:
            on_start([child.number for child in ranks.children])
            codes = ranks.wait(on_poll=on_poll)
        failed = {rank: code for rank, code in sorted(codes.items()) if code}
        if not failed:
            return
        # A rank killed by a signal is the cause; other ranks fail because they lost it.
        rank = next((rank for rank, code in failed.items() if code < 0), min(failed))
        code = failed[rank]
        reason = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise RankFailed(
            f"rank {rank} {reason}: {ranks.find_error_line(rank)[:300]}",
            hint="the recordings of the other ranks are kept",
            is_external=-code in _EXTERNAL_SIGNALS,
        )
