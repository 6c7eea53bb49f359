"""Provide the value of the fixture ``zprof_run``.

It records the runs of one test, opens them with their report, and determines to which run the limits apply.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zprof.model.errors import BadInput, MissingData
from zprof.model.extras import Extra, require_extra
from zprof.notebook.run import AnalysedRun

if TYPE_CHECKING:
    from zprof.collectors.schedule import RecordingSchedule

#: One day.
_MAX_TIMEOUT_S = 86_400


class RunFixture:
    """Records training code: ``run = zprof_run(step, model=model, optimizer=optimizer)``.

    ``folder`` is the folder of the runs, created for the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run_count = 0
        self._limited_runs: list[AnalysedRun] = []

    def __call__(
        self,
        train: Callable[..., object],
        *,
        steps: "RecordingSchedule | None" = None,
        ranks: int = 1,
        memory_mode: str = "full",
        backend: str = "gloo",
        timeout_s: float = 120.0,
        limited: bool = True,
        **objects: Any,
    ) -> "AnalysedRun":
        """Run ``train``, record it and open the recording.

        Args:
            train: one step, a function without arguments; or the entire training, a function that takes
                ``record``, which is :func:`zprof.record` with path and steps already set.
            steps: the recorded steps, see :func:`zprof.steps`; a step function is called once per step.
            ranks: if more than one, ``train(record)`` runs in this number of processes, in a process group
                with ``backend``; it must be defined at the top level of its module.
            memory_mode: as in :func:`zprof.record`.
            backend: backend of the process group, for several ranks.
            timeout_s: time after which several ranks are killed, at most a day.
            limited: False if the limits of this test do not apply to this run.
            objects: ``model``, ``optimizer`` and ``training`` of a step, as in :func:`zprof.record`.

        Raises:
            BadInput: an argument is invalid.
            MissingPackage: torch is not installed.
            MissingData: recording is turned off, or a rank failed.
        """
        from zprof.testing.recording import RecordingRequest, default_steps, record_here, refuse_turned_off

        __tracebackhide__ = True
        _check_arguments(ranks, timeout_s, objects)
        refuse_turned_off()
        require_extra(Extra.RECORD, "zprof_run")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run_count += 1
        path = self._folder / f"run{self._run_count}.zprof"
        request = RecordingRequest(path=path, steps=steps or default_steps(), memory_mode=memory_mode)
        if ranks == 1:
            record_here(train, request, **objects)
        else:
            from zprof.testing.ranks import Ranks, record_on_ranks

            _refuse_objects(objects)
            record_on_ranks(train, request, Ranks(count=ranks, backend=backend, timeout_s=timeout_s))
        if not path.exists():
            raise MissingData(
                "zprof_run: nothing was recorded", hint="with record(model=model) as recording: ... step()"
            )
        return self.load(path, limited=limited)

    def load(self, path: str | Path, *, limited: bool = True) -> "AnalysedRun":
        """Open a run that the test recorded itself, for example in a process that it started.

        Raises:
            BadInput: ``path`` is not a run.
        """
        run = AnalysedRun(path)
        if limited:
            self._limited_runs.append(run)
        return run

    def get_limited_run(self) -> "AnalysedRun":
        """Return the run to which the limits apply.

        Raises:
            BadInput: there is none, or there are several.
        """
        if not self._limited_runs:
            raise BadInput("zprof_limit: the test recorded no run", hint="call the fixture: zprof_run(step)")
        if len(self._limited_runs) > 1:
            raise BadInput(
                f"zprof_limit: the test recorded {len(self._limited_runs)} runs, but limits apply to one",
                hint="zprof_run(…, limited=False) excludes a run",
            )
        return self._limited_runs[0]


def _check_arguments(ranks: int, timeout_s: float, objects: dict[str, Any]) -> None:
    if not isinstance(ranks, int) or ranks < 1:
        raise BadInput(f"zprof_run: ranks={ranks!r} must be an integer of 1 or more", hint="ranks=2")
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise BadInput(
            f"zprof_run: timeout_s={timeout_s!r} must be a number of seconds of at most a day",
            hint="timeout_s=120",
        )
    unknown = [name for name in objects if name not in ("model", "optimizer", "training")]
    if unknown:
        raise BadInput(
            f"zprof_run: unknown argument {unknown[0]}",
            hint="a step is recorded with model, optimizer and training",
        )


def _refuse_objects(objects: dict[str, Any]) -> None:
    if objects:
        raise BadInput(
            f"zprof_run: {', '.join(objects)} of this process cannot be used on several ranks",
            hint="create it in the function, and pass it to record(model=model)",
        )
