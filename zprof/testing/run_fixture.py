"""Provide the value of the fixture ``zprof_run``.

It records runs for one test, opens them with their report, and remembers to which run the limits apply.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zprof.model.errors import BadInput, MissingData
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

if TYPE_CHECKING:
    from zprof.collectors.schedule import Schedule
    from zprof.model.report import Report


#: One day.
_MAX_TIMEOUT_S = 86_400


class RunFixture:
    """Record a piece of training: ``run = zprof_run(step, model=model, optimizer=optimizer)``.

    ``folder`` is the folder of the runs, created with the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorded = 0
        self._limited: list[RecordedRun] = []

    def __call__(
        self,
        train: Callable[..., object],
        *,
        steps: "Schedule | None" = None,
        ranks: int = 1,
        memory_mode: str = "full",
        backend: str = "gloo",
        timeout_s: float = 120.0,
        limited: bool = True,
        **objects: Any,
    ) -> "RecordedRun":
        """Run ``train``, record it and open the recording.

        Args:
            train: one step, a function without arguments; or the whole training, a function of one argument,
                ``record``, which is :func:`zprof.record` without its path and steps.
            steps: which steps are recorded, see :func:`zprof.steps`; a step function is called that often.
            ranks: with more than one, ``train(record)`` runs in that many processes, in a process group of
                ``backend``; it must be defined at the top of its module.
            memory_mode: as in :func:`zprof.record`.
            backend: of the process group of several ranks.
            timeout_s: time after which several ranks are killed, at most a day.
            limited: False if the limits of this test do not apply to this run.
            objects: ``model``, ``optimizer`` and ``training`` of a step, as in :func:`zprof.record`.

        Raises:
            BadInput: it cannot be recorded like that.
            MissingData: there is nothing to record with, or a rank failed.
        """
        from zprof.testing.recording import RecordingRequest, default_steps, record_here, refuse_turned_off

        __tracebackhide__ = True
        _check_arguments(ranks, timeout_s, objects)
        refuse_turned_off()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recorded += 1
        path = self._folder / f"run{self._recorded}.zprof"
        wanted = RecordingRequest(path=path, steps=steps or default_steps(), memory_mode=memory_mode)
        if ranks == 1:
            record_here(train, wanted, **objects)
        else:
            from zprof.testing.ranks import Ranks, record_on_ranks

            _refuse_objects(objects)
            record_on_ranks(train, wanted, Ranks(count=ranks, backend=backend, timeout_s=timeout_s))
        if not path.exists():
            raise MissingData(
                "zprof_run: nothing was recorded", hint="with record(model=model) as recording: ... step()"
            )
        return self.load(path, limited=limited)

    def load(self, path: str | Path, *, limited: bool = True) -> "RecordedRun":
        """Open a run that the test recorded itself, for example in a process that it started.

        Raises:
            BadInput: there is no run.
        """

        run = RecordedRun(path)
        if limited:
            self._limited.append(run)
        return run

    def held(self) -> "RecordedRun":
        """Return the run that the limits apply to.

        Raises:
            BadInput: there is none, or there are several.
        """
        if not self._limited:
            raise BadInput("zprof_limit: the test recorded no run", hint="call the fixture: zprof_run(step)")
        if len(self._limited) > 1:
            raise BadInput(
                f"zprof_limit: the test recorded {len(self._limited)} runs, and its limits are of one",
                hint="zprof_run(…, limited=False) takes a run out",
            )
        return self._limited[0]


def _check_arguments(ranks: int, timeout_s: float, objects: dict[str, Any]) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise BadInput(f"zprof_run: ranks={ranks!r} is no number of ranks", hint="ranks=2")
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise BadInput(
            f"zprof_run: timeout_s={timeout_s!r} is no time of at most a day", hint="timeout_s=120"
        )
    unknown = [name for name in objects if name not in ("model", "optimizer", "training")]
    if unknown:
        raise BadInput(
            f"zprof_run: there is no argument {unknown[0]}",
            hint="model, optimizer and training are what a step is recorded with",
        )


def _refuse_objects(objects: dict[str, Any]) -> None:
    if objects:
        raise BadInput(
            f"zprof_run: {', '.join(objects)} of this process cannot be given to several ranks",
            hint="make it in the function, and give it to record(model=model)",
        )


class RecordedRun(Run):
    """A recording on disk, as :func:`zprof.load` opens it; its report is computed on first use."""

    @cached_property
    def report(self) -> "Report":
        """The result of :func:`zprof.diagnose`.

        Raises:
            BadInput: the recording is damaged.
        """
        from zprof.rules.diagnose import diagnose

        return diagnose(self)

    def described(self, training: TrainingFacts) -> "RecordedRun":
        """Return the same run with other training facts, and a report not computed yet."""
        other = RecordedRun(self.path)
        other.manifest = super().described(training).manifest
        return other
