"""Run one task per file on processes of this machine or on a Dask cluster.

A local process that dies breaks its pool. The files that were being read are then read again, one process
each, which identifies the file that kills its reader and saves the others.

A cluster is selected with ``--executor dask://HOST:PORT``; ``distributed`` is imported only then.
"""

import contextlib
import multiprocessing
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from zprof.base.errors import BadInput, Extra, require_extra
from zprof.process.workers import choose_start_method, hide_main_module, set_up_worker

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
#: Interval for checking that the executor is alive while no result arrives.
_ALIVE_CHECK_S = 20.0
_TICK_S = 0.1
_ADDRESS = re.compile(r"dask://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})")
#: Hint on a requirement that users may overlook.
SHARED_DISK = "the traces and the run must be on a file system that the cluster shares with this machine"
_CONNECT_S = 10.0
_WORKERS_S = 30.0


def map_in_processes(
    work: Callable[[_Job], _Result],
    jobs: Iterable[_Job],
    workers: int,
    on_running: Callable[[Collection[_Job]], None] = lambda jobs: None,
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Run ``work`` on each job in ``workers`` processes of this machine.

    ``on_running`` is called with the running jobs when jobs have started, and then every tenth of a second.
    Yields each job with its result, or with the error that it raised; ``BrokenExecutor`` if its process died.

    Raises:
        BadInput: no process can be started at all.
    """
    pending = deque(jobs)
    is_start_checked = False
    while pending:
        running: dict[Future[_Result], _Job] = {}
        with (
            _make_pool(min(workers, len(pending))) as pool,
            contextlib.suppress(BrokenExecutor),  # ``running`` has the jobs that were in the pool
            _kill_processes_on_error(),
        ):
            yield from _run_pool(pool, work, pending, running, workers, on_running)
        suspects = list(running.values()) or [pending.popleft() for _ in range(min(1, len(pending)))]
        if suspects and not is_start_checked:
            # Detect a machine on which no process can be started.
            if isinstance(run_alone(_do_nothing, None), BaseException):
                raise BadInput(
                    "cannot start the processes that read the files",
                    hint="see the output above; the limits of this machine (ulimit -u, ulimit -v) may be too "
                    "low",
                )
            is_start_checked = True
        for job in suspects:
            yield job, run_alone(work, job, on_running)


def run_alone(
    work: Callable[[_Job], _Result],
    job: _Job,
    on_running: Callable[[Collection[_Job]], None] = lambda jobs: None,
) -> _Result | BaseException:
    """Run ``work`` on one job in a separate process, like ``map_in_processes``.

    Returns:
        Its result, or the error that it raised; ``BrokenExecutor`` if the process died.

    Raises:
        OSError: no process can be started.
    """
    with _make_pool(1) as pool, _kill_processes_on_error():
        future = _submit(pool, work, job)
        while not future.done():
            on_running([job])
            wait([future], timeout=_TICK_S)
        return _get_outcome(future)


def map_on_executor(
    executor: Executor,
    work: Callable[[_Job], _Result],
    jobs: Iterable[_Job],
    check_alive: Callable[[], None] = lambda: None,
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Submit all jobs to the caller's executor and yield like ``map_in_processes``.

    ``check_alive`` raises if no worker is left.
    """
    running = {executor.submit(work, job): job for job in jobs}
    try:
        while running:
            done, _ = wait(running, timeout=_ALIVE_CHECK_S, return_when=FIRST_COMPLETED)
            if not done:
                check_alive()
            for future in done:
                outcome: _Result | BaseException = _get_outcome(future)
                yield running.pop(future), outcome
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _kill_processes_on_error() -> Iterator[None]:
    """End the processes started in the block if it fails, for example at a Ctrl-C: a pool waits for its
    jobs.
    """
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        raise


def _run_pool(
    pool: Executor,
    work: Callable[[_Job], _Result],
    pending: deque[_Job],
    running: dict[Future[_Result], _Job],
    workers: int,
    on_running: Callable[[Collection[_Job]], None],
) -> Iterator[tuple[_Job, _Result | BaseException]]:
    """Submit at most one job per process, so few jobs are suspect if a process dies.

    Raises:
        BrokenExecutor: a process died; ``running`` has the jobs without a result.
    """
    while pending or running:
        while pending and len(running) < workers:
            future = _submit(pool, work, pending[0])
            running[future] = pending.popleft()
        on_running(running.values())
        done, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        for future in done:
            outcome = _get_outcome(future)
            if isinstance(outcome, BrokenExecutor):
                raise outcome
            yield running.pop(future), outcome


def _submit(pool: Executor, work: Callable[[_Job], _Result], job: _Job) -> Future[_Result]:
    """Submit a job, which may start a process of the pool."""
    with hide_main_module():
        return pool.submit(work, job)


def _do_nothing(_: None) -> None:
    """Do nothing, to test that a process starts."""


def _get_outcome(future: Future[_Result]) -> _Result | BaseException:
    if future.cancelled():
        return BrokenExecutor("cancelled")
    error = future.exception()
    return error if error is not None else future.result()


def _make_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=choose_start_method(), initializer=set_up_worker)


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Yield the executor of a running cluster, and a check that raises BadInput if no workers are left.

    Raises:
        BadInput: the address is invalid, ``distributed`` is not installed, the scheduler cannot be reached,
            or it has no workers.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise BadInput(f"--executor {address}: not an executor address", hint="use dask://HOST:PORT")
    with contextlib.closing(_connect(address, f"tcp://{match[1]}:{match[2]}")) as client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_S)
        except TimeoutError:
            raise _make_no_workers_error(address) from None
        # pure=False because the file may have changed since the cluster last read it
        yield client.get_executor(pure=False, retries=0), lambda: _check_alive(client, address)


def _connect(address: str, tcp: str) -> Any:
    require_extra(Extra.DASK, f"--executor {address}")
    import distributed

    connect: Any = distributed.Client
    try:
        return connect(tcp, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: cannot reach the scheduler ({type(error).__name__})"
        raise BadInput(message, hint="start one with dask scheduler, and workers with dask worker") from None


def _check_alive(client: Any, address: str) -> None:
    """Raise if there are no workers or no scheduler left to run tasks."""
    try:
        workers = client.nthreads()
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: lost the connection to the scheduler ({type(error).__name__})"
        raise BadInput(message, hint="start the import again") from None
    if not workers:
        raise _make_no_workers_error(address)


def _make_no_workers_error(address: str) -> BadInput:
    return BadInput(f"--executor {address}: the cluster has no workers", hint="start some with dask worker")
