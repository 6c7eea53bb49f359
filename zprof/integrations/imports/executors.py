"""Run one task per file on processes of this machine or on a Dask cluster.

Local processes start from a clean server process (forkserver), so no threads, locks or open files of the
caller are copied. A process that dies breaks its pool. The files that were being read are then read alone,
one process each, which identifies the file that kills its reader and keeps the others.

The cluster is named with ``--executor dask://HOST:PORT``; ``distributed`` is imported only then.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from zprof.model.errors import BadInput

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
#: Interval of checks that a caller's executor is still alive, while no result arrives.
_ASK_S = 20.0


def usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    work: Callable[[_Job], _Result], jobs: Iterable[_Job], workers: int
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Run ``work`` on each job in ``workers`` processes of this machine.

    Yields each job with its result, or with the error that it raised; ``BrokenExecutor`` if its process died.

    Raises:
        BadInput: no process can be started at all.
    """
    waiting = deque(jobs)
    known_to_start = False
    while waiting:
        flying: dict[Future[_Result], _Job] = {}
        with _make_pool(min(workers, len(waiting))) as pool:
            try:
                yield from _run_pool(pool, work, waiting, flying, workers)
            except BrokenExecutor:
                pass  # ``flying`` has the jobs that were in the pool
            finally:
                pool.shutdown(cancel_futures=True)
        suspects = list(flying.values()) or [waiting.popleft() for _ in range(min(1, len(waiting)))]
        if suspects and not known_to_start:
            _check_that_processes_start()
            known_to_start = True
        for job in suspects:
            yield job, _run_alone(work, job)


def map_on_executor(
    executor: Executor,
    work: Callable[[_Job], _Result],
    jobs: Iterable[_Job],
    alive: Callable[[], None] = lambda: None,
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Submit all jobs to the caller's executor and yield like ``map_in_processes``.

    ``alive`` raises if no worker is left.
    """
    flying = {executor.submit(work, job): job for job in jobs}
    try:
        while flying:
            done, _ = wait(flying, timeout=_ASK_S, return_when=FIRST_COMPLETED)
            if not done:
                alive()
            for future in done:
                outcome: _Result | BaseException = _future_outcome(future)
                yield flying.pop(future), outcome
    finally:
        for future in flying:
            future.cancel()


def _run_pool(
    pool: Executor,
    work: Callable[[_Job], _Result],
    waiting: deque[_Job],
    flying: dict[Future[_Result], _Job],
    workers: int,
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Keep at most as many jobs in the pool as it has processes, so that few are suspects if one dies.

    Raises:
        BrokenExecutor: a process died; ``flying`` holds the jobs without a result.
    """
    while waiting or flying:
        while waiting and len(flying) < workers:
            future = pool.submit(work, waiting[0])
            flying[future] = waiting.popleft()
        done, _ = wait(flying, return_when=FIRST_COMPLETED)
        for future in done:
            outcome = _future_outcome(future)
            if isinstance(outcome, BrokenExecutor):
                raise outcome
            yield flying.pop(future), outcome


def _run_alone(work: Callable[[_Job], _Result], job: _Job) -> _Result | BaseException:
    with _make_pool(1) as pool:
        return _future_outcome(pool.submit(work, job))


def _check_that_processes_start() -> None:
    """Refuse a script without a main guard: it runs again in each process, which ends there."""
    if isinstance(_run_alone(_do_nothing, None), BaseException):
        raise BadInput(
            "processes that read the files cannot be started",
            hint="in a script, work below if __name__ == '__main__':",
        )


def _do_nothing(_: None) -> None:
    """Do nothing, to test that a process starts."""


def _future_outcome(future: Future[_Result]) -> _Result | BaseException:
    if future.cancelled():
        return BrokenExecutor("cancelled")
    error = future.exception()
    return error if error is not None else future.result()


def _make_pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start_process)


def _start_process() -> None:
    """Set up a process of the pool, before numpy is imported."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the owner: an idle process of a pool does not notice that its owner was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_ADDRESS = re.compile(r"dask://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})")
#: Requirement of a cluster that users may not think of.
SHARED_DISK = "the cluster needs the traces and the run on a file system that it shares with this machine"
_CONNECT_S = 10.0
_WORKERS_S = 30.0


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Yield the executor of a running cluster, and a check that raises BadInput if no workers are left.

    Raises:
        BadInput: the address is invalid, ``distributed`` is not installed, the scheduler cannot be reached,
            or it has no workers.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise BadInput(f"--executor {address}: not an executor", hint="give dask://HOST:PORT")
    with contextlib.closing(_connect(address, f"tcp://{match[1]}:{match[2]}")) as client:
        _wait_for_workers(client, address)
        # not pure: the same file may have changed since the cluster last read it
        yield client.get_executor(pure=False, retries=0), lambda: _check_alive(client, address)


def _connect(address: str, tcp: str) -> Any:
    try:
        import distributed
    except ImportError:
        message = f"--executor {address}: distributed is not installed"
        raise BadInput(message, hint="pip install 'zprof[dask]'") from None
    connect: Any = distributed.Client
    try:
        return connect(tcp, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: no scheduler answers ({type(error).__name__})"
        raise BadInput(message, hint="start one with dask scheduler, and workers with dask worker") from None


def _wait_for_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError:
        raise _no_workers(address) from None


def _check_alive(client: Any, address: str) -> None:
    """Refuse to wait for tasks without workers or scheduler."""
    try:
        workers = client.nthreads()
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: the scheduler is gone ({type(error).__name__})"
        raise BadInput(message, hint="start the import again") from None
    if not workers:
        raise _no_workers(address)


def _no_workers(address: str) -> BadInput:
    return BadInput(f"--executor {address}: the cluster has no workers", hint="start some with dask worker")
