"""One task per file, over processes of our own or an executor of the caller's."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path

import pytest

from zprof.collectors.read.imports.executors import map_in_processes, map_on_executor


def double(number: int) -> int:
    return 2 * number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        raise ValueError("five")
    return 2 * number


def die_once(mark: str) -> str:
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second try"


def test_a_job_whose_process_died_is_tried_alone(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    assert dict(map_in_processes(die_once, [mark], 2)) == {mark: "second try"}


def test_the_job_that_kills_its_process_is_found_and_the_others_go_on() -> None:
    found = dict(map_in_processes(die_at_three, range(8), 2))
    assert isinstance(found.pop(3), BrokenExecutor)
    assert isinstance(found.pop(5), ValueError)
    assert found == {n: 2 * n for n in range(8) if n not in (3, 5)}


def test_an_abandoned_map_leaves_no_process() -> None:
    others = set(multiprocessing.active_children())  # of other tests in this process
    results = map_in_processes(double, range(50), 2)
    next(results)
    results.close()
    assert not set(multiprocessing.active_children()) - others


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from zprof.collectors.read.imports.executors import map_in_processes\n"
        "with open('runs', 'a') as file: file.write('x')\n"
        "list(map_in_processes(len, ['a'] * 50, 2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs").read_text() == "x"


class Direct(Executor):
    """Works at once, in this thread; or, without workers, never."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.futures: list[Future[object]] = []

    def submit(self, work, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.futures.append(future := Future())
        try:
            if self.workers:
                future.set_result(work(*args, **kwargs))
        except ValueError as error:
            future.set_exception(error)
        return future


def test_any_executor_serves() -> None:
    found = dict(map_on_executor(Direct(1), die_at_three, [4, 5, 6]))
    assert isinstance(found.pop(5), ValueError)
    assert found == {4: 8, 6: 12}


def test_an_executor_without_workers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LookupError("nobody")

    monkeypatch.setattr("zprof.collectors.read.imports.executors._ALIVE_CHECK_S", 0.01)
    executor = Direct(0)
    with pytest.raises(LookupError):
        list(map_on_executor(executor, double, range(3), refuse))
    assert all(future.cancelled() for future in executor.futures)
