"""Record a training function on several ranks of this machine, each a process of its own.

A failure in a rank becomes one line: which rank, what it raised or which signal killed it, or where it was at
the timeout.  No process outlives the call.
"""

import json
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zprof.integrations.rank_of_test import ASK, PLAN, RankPlan, failure_path, place_path
from zprof.model.errors import BadInput, MissingData
from zprof.model.formatting import printable, shorten
from zprof.testing.recording import RecordingRequest, takes_record

#: Time for the other ranks to end by themselves after one failed, so that all can report what they saw.
_GRACE_S = 3.0
#: Time for a rank to answer where it is, and between two checks.
_ANSWER_S, _LOOK_S = 2.0, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Number of ranks, their backend, and a timeout for all of them."""

    count: int
    backend: str = "gloo"
    timeout_s: float = 120.0


def record_on_ranks(train: Callable[..., object], wanted: RecordingRequest, ranks: Ranks) -> None:
    """Run ``train(record)`` on each rank, in a process group, and record it.

    The output of the ranks goes to stderr.

    Raises:
        BadInput: the function cannot be sent to another process.
        MissingData: a rank failed, died or did not end.
    """
    if not takes_record(train):
        raise BadInput(
            f"zprof_run: ranks={ranks.count} needs a function that makes its model on each rank",
            hint="def train(record): ... with record(model=model) as recording: ... recording.step()",
        )
    plan = _make_plan(train, wanted, ranks)
    with tempfile.TemporaryDirectory(prefix="zprof-ranks-") as name:
        folder = Path(name)
        (folder / PLAN).write_bytes(pickle.dumps(plan))
        with _start_ranks(folder, ranks.count) as processes:
            problem = _wait_for_ranks(processes, folder, plan)
        _show_output(folder, ranks.count)
    if problem:
        raise MissingData(f"zprof_run: {problem}")


def _make_plan(train: Callable[..., object], wanted: RecordingRequest, ranks: Ranks) -> RankPlan:
    function: Any = train
    while isinstance(function, partial):
        function = function.func
    try:
        pickled = pickle.dumps(train)
    except Exception:  # pickle can raise anything
        name = getattr(function, "__qualname__", type(function).__name__)
        raise BadInput(
            f"zprof_run: {name} cannot be brought to another process",
            hint="define it at the top of its module, and give it arguments that can be pickled",
        ) from None
    module = sys.modules.get(getattr(function, "__module__", type(function).__module__))
    return RankPlan(
        module=getattr(module, "__name__", ""),
        file=getattr(module, "__file__", None) or "",
        train=pickled,
        run=str(wanted.path),
        schedule=pickle.dumps(wanted.steps),
        memory_mode=wanted.memory_mode,
        backend=ranks.backend,
        timeout_s=ranks.timeout_s,
    )


@contextmanager
def _start_ranks(folder: Path, count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            with output_path(folder, rank).open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "zprof.integrations.rank_of_test", str(folder)],
                        env=os.environ | _environment(rank, count),
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            end_rank(process)


def _environment(rank: int, count: int) -> Mapping[str, str]:
    """Return a launcher's variables, and this process's paths so that the function's module is found."""
    paths = [path or os.getcwd() for path in sys.path]
    chosen = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {
        **{name: str(value) for name, value in chosen.items()},
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def _wait_for_ranks(processes: list["subprocess.Popen[bytes]"], folder: Path, plan: RankPlan) -> str:
    """Wait until all have ended, one has failed or time is up; return the problem, or an empty string."""
    ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for rank, process in enumerate(processes):
        threading.Thread(
            target=lambda rank, process: ended.put((rank, process.wait())), args=(rank, process), daemon=True
        ).start()
    codes: dict[int, int] = {}
    deadline = time.monotonic() + plan.timeout_s
    while len(codes) < len(processes):
        try:
            rank, code = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if code and not any(codes.values()):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        codes[rank] = code
    if any(codes.values()):
        return describe_failure(codes, len(processes), folder)
    running = [rank for rank in range(len(processes)) if rank not in codes]
    _ask_for_places(processes, running, folder)
    return describe_timeout(running, len(processes), folder, plan) if running else ""


def _ask_for_places(processes: list["subprocess.Popen[bytes]"], ranks: Sequence[int], folder: Path) -> None:
    """Ask the ranks to write down where they are, with a short timeout."""
    for rank in ranks:
        processes[rank].send_signal(ASK)
    end = time.monotonic() + _ANSWER_S
    while time.monotonic() < end and not all(_has_answered(folder, rank) for rank in ranks):
        time.sleep(_LOOK_S)


def _has_answered(folder: Path, rank: int) -> bool:
    path = place_path(folder, rank)
    return path.exists() and path.stat().st_size > 0


def end_rank(process: "subprocess.Popen[bytes]") -> None:
    """Kill a rank and what it started, which may outlive it; the rank leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def output_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's output."""
    return folder / f"output{rank}.txt"


def _show_output(folder: Path, count: int) -> None:
    for rank in range(count):
        for line in output_path(folder, rank).read_text(errors="backslashreplace").splitlines():
            sys.stderr.write(f"rank {rank}: {line}\n")


_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_ABORT = -signal.SIGABRT
_MAX_PLACES = 4
_MAX_LINE = 300


def describe_failure(codes: Mapping[int, int], count: int, folder: Path) -> str:
    """Describe the rank that failed first: the others fail because it is gone.  ``codes`` are by rank."""
    raised = sorted(failure for rank in codes for failure in _read_failures(folder, rank))
    spoke = {rank for _, rank, _ in raised}
    # A rank that loses its connections may abort: that is not the cause if another one raised.
    silent = [
        rank for rank, code in codes.items() if code and rank not in spoke and not (raised and code == _ABORT)
    ]
    if silent:
        return f"rank {silent[0]} of {count} {_describe_exit(codes[silent[0]])}"
    _, rank, line = raised[0]
    return f"rank {rank} of {count}: {_clean(line)}"


def describe_timeout(running: Sequence[int], count: int, folder: Path, plan: RankPlan) -> str:
    """Describe the ranks that did not end in time, and where they are, which shows who waits for whom."""
    who = ("rank " if len(running) == 1 else "ranks ") + ", ".join(str(rank) for rank in running)
    line = f"{who} of {count} did not end within {plan.timeout_s:g} s (timeout_s)"
    places = [(rank, _read_place(place_path(folder, rank), plan.file)) for rank in running]
    said = [f"rank {rank} is at {_clean(place)}" for rank, place in places if place][:_MAX_PLACES]
    return "; ".join([line, *said])


def _describe_exit(code: int) -> str:
    return f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"


def _read_failures(folder: Path, rank: int) -> list[tuple[int, int, str]]:
    """Return time, rank and message of a rank that raised."""
    try:
        failure = json.loads(failure_path(folder, rank).read_text())
        return [(int(failure["time_ns"]), rank, str(failure["line"]))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_place(path: Path, file: str) -> str:
    """Return the innermost frame in the function's own file."""
    try:
        frames = list(_FRAME.finditer(path.read_text(errors="replace")))
    except OSError:
        return ""
    own = next((frame for frame in frames if frame["file"] == file), None)
    return f"{Path(file).name}:{own['line']} in {own['function']}" if own else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _clean(text: str) -> str:
    return shorten(printable(text), _MAX_LINE)
