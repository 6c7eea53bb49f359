"""Provide the value of the fixture ``zprof_run``.

It records the runs of one test, opens them with their reports, and selects the run for the limits. Training
code is a function without arguments (one step) or a function with an argument ``record``:
:func:`zprof.record` with path and steps already set.

Several ranks are processes on this machine. A rank failure is reported on one line: the rank, and its
exception, the signal that killed it, or its position in the code at the timeout. No process outlives the
call.
"""

import inspect
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from zprof.base.errors import BadInput, Extra, MissingData, require_extra
from zprof.base.formatting import name_signal, printable, shorten
from zprof.collectors.record.launch.pytest_rank import ASK, PLAN, RankPlan, failure_path, stack_path
from zprof.notebook.run import AnalysedRun
from zprof.process.ranks import Ranks

if TYPE_CHECKING:
    from zprof.collectors.record.recorder import Recorder
    from zprof.collectors.record.schedule import RecordingSchedule

#: Environment variable of the recorder, repeated because importing the recorder needs torch.
_OFF_SWITCH = "ZPROF"
_AS_FUNCTION = "def train(record): ... with record(model=model) as recording: ... recording.step()"
#: One day.
_MAX_TIMEOUT_S = 86_400
#: Time for the other ranks to exit after a failure, so all can report errors.
_GRACE_S = 3.0
#: Time for a rank to report its position in the code, and the interval between checks.
_ANSWER_TIMEOUT_S, _POLL_S = 2.0, 0.02
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_ABORT = -signal.SIGABRT
_MAX_POSITIONS = 4
_MAX_LINE_LENGTH = 300


class RunFixture:
    """Records training code: ``run = zprof_run(step, model=model, optimizer=optimizer)``.

    ``folder``: the folder of the runs, created for the first run.
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
            train: one step (a function without arguments), or the entire training (a function with an
                argument ``record``: :func:`zprof.record` with path and steps already set).
            steps: the steps to record, see :func:`zprof.steps`; a step function is called once per step.
            ranks: number of processes; if more than one, they run ``train(record)`` in a process group with
            ``backend``, and ``train`` must be defined at the top level of its module.
            memory_mode: as in :func:`zprof.record`.
            backend: backend of the process group, for several ranks.
            timeout_s: time after which multiple ranks are killed, at most a day.
            limited: False if the test's limits do not apply to this run.
            objects: ``model``, ``optimizer`` and ``training`` of a step, as in :func:`zprof.record`.

        Raises:
            BadInput: an argument is invalid.
            MissingPackage: torch is not installed.
            MissingData: recording is turned off, or a rank failed.
        """
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
            _refuse_objects(objects)
            record_on_ranks(train, request, ranks, backend=backend, timeout_s=timeout_s)
        if not path.exists():
            raise MissingData(
                "zprof_run: nothing was recorded", hint="with record(model=model) as recording: ... step()"
            )
        return self.load(path, limited=limited)

    def load(self, path: str | Path, *, limited: bool = True) -> "AnalysedRun":
        """Open a run recorded by the test itself, for example in a process that it started.

        Raises:
            BadInput: ``path`` is not a run.
        """
        run = AnalysedRun(path)
        if limited:
            self._limited_runs.append(run)
        return run

    def get_limited_run(self) -> "AnalysedRun":
        """Return the run that the limits apply to.

        Raises:
            BadInput: there is no such run, or there are several.
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


class RecordingRequest(Struct, frozen=True, kw_only=True):
    """Path, steps and memory mode of a recording."""

    path: Path
    steps: "RecordingSchedule"
    memory_mode: str = "full"


def default_steps() -> "RecordingSchedule":
    """Return the default of :func:`zprof.steps`."""
    from zprof.collectors.record.schedule import RecordingSchedule

    return RecordingSchedule()


def refuse_turned_off() -> None:
    """Check that recording is not turned off, before starting processes.

    Raises:
        MissingData: recording is turned off.
    """
    if os.environ.get(_OFF_SWITCH) == "0":
        raise MissingData("zprof_run: recording is turned off by ZPROF=0", hint="unset it")


def make_recorder(request: RecordingRequest) -> "Callable[..., Recorder]":
    """Return :func:`zprof.record` with path, steps and memory mode set."""
    from zprof.collectors.record.recorder import record

    return partial(record, request.path, steps=request.steps, memory_mode=request.memory_mode)


def record_here(train: Callable[..., object], request: RecordingRequest, **objects: Any) -> None:
    """Run ``train`` and record it; its own exceptions pass through.

    Args:
        train: one step, or the entire training.
        request: the output path and the steps.
        objects: ``model``, ``optimizer`` and ``training`` of a step, as in :func:`zprof.record`.

    Raises:
        BadInput: ``train`` has a wrong signature, or takes ``record`` and ``objects`` are given.
    """
    __tracebackhide__ = True  # show exceptions of the test's own code without zprof's frames
    is_entire_training = takes_record(train)
    if is_entire_training and objects:
        raise BadInput(f"zprof_run: {', '.join(objects)} cannot be given with a function that takes record",
                       hint=f"pass it to record: {_AS_FUNCTION}")  # fmt: skip
    record = make_recorder(request)
    if is_entire_training:
        train(record)
        return
    with record(**objects) as recording:
        for _ in range(request.steps.total):
            train()
            recording.step()


def takes_record(train: Callable[..., object]) -> bool:
    """Return True if ``train`` is an entire training instead of a step.

    Raises:
        BadInput: ``train`` is neither.
    """
    if not callable(train):
        raise BadInput("zprof_run: the first argument is not a function", hint="zprof_run(step, model=model)")
    try:
        parameters = list(inspect.signature(train).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.default is parameter.empty and parameter.kind in positional for parameter in parameters
    )
    if required > 1:
        raise BadInput(
            f"zprof_run: the function has {required} required arguments; it can take only record",
            hint=f"bind the others with functools.partial: {_AS_FUNCTION}",
        )
    return required == 1


def record_on_ranks(
    train: Callable[..., object], request: RecordingRequest, count: int, *, backend: str, timeout_s: float
) -> None:
    """Run ``train(record)`` on ``count`` ranks, in a process group, and record it.

    ``timeout_s``: for all ranks together.

    The output of the ranks goes to stderr.

    Raises:
        BadInput: the function cannot be sent to another process.
        MissingData: a rank failed, was killed or did not finish.
    """
    if not takes_record(train):
        raise BadInput(
            f"zprof_run: ranks={count} needs a function that creates its model on each rank",
            hint="def train(record): ... with record(model=model) as recording: ... recording.step()",
        )
    plan = _make_plan(train, request, backend, timeout_s)
    with tempfile.TemporaryDirectory(prefix="zprof-ranks-") as name:
        folder = Path(name)
        (folder / PLAN).write_bytes(pickle.dumps(plan))
        paths = [path or os.getcwd() for path in sys.path]
        ranks = Ranks(
            ["-m", "zprof.collectors.record.launch.pytest_rank", str(folder)],
            count,
            folder,
            environment={"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,  # a rank ends when it closes
            lead_sessions=True,
            failure_grace_s=_GRACE_S,
            end_grace_s=0.0,
        )
        with ranks:
            problem = _wait_for_ranks(ranks, folder, plan)
        for rank in range(count):
            for line in ranks.read_output(rank):
                sys.stderr.write(f"rank {rank}: {line}\n")
    if problem:
        raise MissingData(f"zprof_run: {problem}")


def _make_plan(
    train: Callable[..., object], request: RecordingRequest, backend: str, timeout_s: float
) -> RankPlan:
    function: Any = train
    while isinstance(function, partial):
        function = function.func
    try:
        pickled = pickle.dumps(train)
    except Exception:  # pickle can raise anything
        name = getattr(function, "__qualname__", type(function).__name__)
        raise BadInput(
            f"zprof_run: {name} cannot be pickled for another process",
            hint="define it at the top level of its module, with arguments that can be pickled",
        ) from None
    module = sys.modules.get(getattr(function, "__module__", type(function).__module__))
    return RankPlan(
        module=getattr(module, "__name__", ""),
        file=getattr(module, "__file__", None) or "",
        train=pickled,
        run=str(request.path),
        schedule=pickle.dumps(request.steps),
        memory_mode=request.memory_mode,
        backend=backend,
        timeout_s=timeout_s,
    )


def _wait_for_ranks(ranks: Ranks, folder: Path, plan: RankPlan) -> str:
    """Wait for all ranks, a failure or the timeout; return a description of the problem, or ""."""
    codes, count = ranks.wait(timeout_s=plan.timeout_s), len(ranks.children)
    if any(codes.values()):
        return describe_failure(codes, count, folder)
    running = [rank for rank in range(count) if rank not in codes]
    # Request each rank's position in the code, and wait for it with a short timeout.
    for rank in running:
        ranks.children[rank].send_signal(ASK)
    end = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < end and not all(_has_answered(folder, rank) for rank in running):
        time.sleep(_POLL_S)
    return describe_timeout(running, count, folder, plan) if running else ""


def _has_answered(folder: Path, rank: int) -> bool:
    path = stack_path(folder, rank)
    return path.exists() and path.stat().st_size > 0


def describe_failure(codes: Mapping[int, int], count: int, folder: Path) -> str:
    """Describe the rank that failed first: others fail because it exited. ``codes``: exit codes by rank."""
    raised = sorted(failure for rank in codes for failure in _read_failures(folder, rank))
    reporting_ranks = {rank for _, rank, _ in raised}
    # A rank that loses its connections may abort: that is not the cause if another rank raised an exception.
    silent = [
        rank
        for rank, code in codes.items()
        if code and rank not in reporting_ranks and not (raised and code == _ABORT)
    ]
    if silent:
        code = codes[silent[0]]
        end = f"was killed by {name_signal(-code)}" if code < 0 else f"exited with code {code}"
        return f"rank {silent[0]} of {count} {end}"
    _, rank, line = raised[0]
    return f"rank {rank} of {count}: {_clean(line)}"


def describe_timeout(running: Sequence[int], count: int, folder: Path, plan: RankPlan) -> str:
    """Describe the ranks that did not finish in time, and their positions in the code."""
    label = ("rank " if len(running) == 1 else "ranks ") + ", ".join(str(rank) for rank in running)
    line = f"{label} of {count} did not finish within {plan.timeout_s:g} s (timeout_s)"
    positions = [(rank, _read_position(stack_path(folder, rank), plan.file)) for rank in running]
    descriptions = [f"rank {rank} is at {_clean(position)}" for rank, position in positions if position]
    return "; ".join([line, *descriptions[:_MAX_POSITIONS]])


def _read_failures(folder: Path, rank: int) -> list[tuple[int, int, str]]:
    """Return (time, rank, message) of an exception reported by a rank, as a list of at most one item."""
    try:
        failure = json.loads(failure_path(folder, rank).read_text())
        return [(int(failure["time_ns"]), rank, str(failure["line"]))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_position(path: Path, file: str) -> str:
    """Return the innermost frame in the function's own file."""
    try:
        frames = list(_FRAME.finditer(path.read_text(errors="replace")))
    except OSError:
        return ""
    own = next((frame for frame in frames if frame["file"] == file), None)
    return f"{Path(file).name}:{own['line']} in {own['function']}" if own else ""


def _clean(text: str) -> str:
    return shorten(printable(text), _MAX_LINE_LENGTH)
