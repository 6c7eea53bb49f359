"""One task a file, over processes of our own or an executor of the caller's."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path

import pytest

from zprof.integrations.imports.executors import map_in_processes, map_on_executor


def double(number: int) -> int:
    return 2 * number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return 2 * number


def threads_asked(_: int) -> str:
    return os.environ.get("OPENBLAS_NUM_THREADS", "")


def die_once(mark: str) -> str:
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second try"


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_has_its_result(workers: int) -> None:
    assert dict(map_in_processes(double, range(10), workers)) == {n: 2 * n for n in range(10)}


def test_the_job_that_kills_its_process_is_found_and_the_others_go_on() -> None:
    found = dict(map_in_processes(die_at_three, range(8), 2))
    assert isinstance(found.pop(3), BrokenExecutor)
    assert found == {n: 2 * n for n in range(8) if n != 3}


def test_a_job_that_was_only_beside_it_is_done_again(tmp_path: Path) -> None:
    assert dict(map_in_processes(die_once, [str(tmp_path / "mark")], 2)) == {
        str(tmp_path / "mark"): "second try"
    }


def test_an_error_is_the_result_of_its_job() -> None:
    found = dict(map_in_processes(fail_at_three, range(5), 2))
    assert isinstance(found[3], ValueError)
    assert found[4] == 8


def test_processes_ask_for_one_thread_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert dict(map_in_processes(threads_asked, [0], 1)) == {0: "1"}
    assert multiprocessing.active_children() == []


def test_an_abandoned_map_leaves_no_process() -> None:
    results = map_in_processes(double, range(50), 2)
    next(results)
    results.close()
    assert multiprocessing.active_children() == []


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from zprof.integrations.imports.executors import map_in_processes\n"
        "with open('runs', 'a') as file: file.write('x')\n"
        "list(map_in_processes(len, ['a'] * 50, 2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "processes that read the files cannot be started" in done.stderr
    assert len((tmp_path / "runs").read_text()) <= 5, "the script is not run again for every file"


class Direct(Executor):
    """An executor that works at once, in this thread."""

    def submit(self, work, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except ValueError as error:
            future.set_exception(error)
        return future


class Dead(Executor):
    """An executor that nobody works for."""

    def __init__(self) -> None:
        self.futures: list[Future[object]] = []

    def submit(self, work, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.futures.append(Future())
        return self.futures[-1]


def test_any_executor_serves() -> None:
    found = dict(map_on_executor(Direct(), fail_at_three, range(5)))
    assert isinstance(found.pop(3), ValueError)
    assert found == {0: 0, 1: 2, 2: 4, 4: 8}


def test_an_executor_without_anybody_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise LookupError("nobody")

    monkeypatch.setattr("zprof.integrations.imports.executors._ASK_S", 0.01)
    executor = Dead()
    with pytest.raises(LookupError):
        list(map_on_executor(executor, double, range(3), gone))
    assert all(future.cancelled() for future in executor.futures)
