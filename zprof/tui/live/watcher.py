"""Looks at everything that the live view shows: the run, what is measured of it, its job."""

from pathlib import Path

from zprof.run.live import LiveRun
from zprof.tui.live.job import JobLine, LogTail
from zprof.tui.live.measuring import Measuring
from zprof.tui.live.seen import Seen


class Watcher:
    """One look after the other, on any thread.

    Args:
        run: The run directory; it need not be there yet.
        job: A pipe's end from the command that runs the job, where one does.
        log: What the job writes, where that goes to a file.
    """

    def __init__(
        self,
        run: Path,
        *,
        job: int | None = None,
        log: Path | None = None,
        measuring: Measuring | None = None,
    ) -> None:
        self.path = run
        self._run, self._measuring = LiveRun(run), measuring or Measuring(run)
        self._job, self._log = JobLine(job), LogTail(log)

    @property
    def hung_up(self) -> bool:
        """Whether the command that started the view wants it to go."""
        return self._job.hung_up

    def look(self) -> Seen:
        """What there is now."""
        job = self._job.look()  # first: what the job wrote before its end is then seen with it
        state = self._run.look()
        return Seen(state=state, measured=self._measuring.look(state), job=job, log=self._log.look())

    def close(self) -> None:
        """End what runs beside it."""
        self._measuring.close()
