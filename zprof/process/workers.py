"""Start worker processes that keep their loaded data, so only results are transferred.

From a process with a single thread, such as the command line before it imports numpy, they are forked, which
takes milliseconds. From any other process they start from a clean server (forkserver), so no threads or locks
are copied; this takes as long as starting Python twice.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkContext, ForkServerContext
from types import ModuleType
from typing import Any, Generic, Protocol, Self, TypeVar

from zprof.process.interrupts import raise_lost_interrupt
from zprof.process.memory_limit import read_memory_limit

#: Maximum time for an interrupt to reach this process after it ended the others.
_INTERRUPT_S = 0.1
_State = TypeVar("_State")
_State_co = TypeVar("_State_co", covariant=True)
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def count_usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return True if this process has one thread: then its copy holds no lock of another thread.

    With a memory limit, a copy would start with the memory that this process has mapped.
    """
    try:
        return read_memory_limit() is None and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def choose_start_method() -> ForkContext | ForkServerContext:
    """Return how to start a process from this one."""
    if can_fork():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("forkserver")


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Start processes in this block without the caller's main module.

    A new process would import that module, and so rerun a script without a main guard. Its work does not need
    the module. A Ctrl-C is deferred meanwhile: a new process would print a traceback.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def set_up_worker() -> None:
    """Set up a new process before it imports numpy: it ends on Ctrl-C, and with its parent.

    If the parent ignores SIGINT, like a background job of a script, so does the new process.
    """
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the parent: an idle process does not notice that its parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class WorkerFailed(Exception):
    """A worker died, could not start, or raised an error; the caller then does the work itself."""


class Workers(Protocol[_State_co]):
    """One or more workers, each holding a state."""

    def call(
        self, work: Callable[[_State_co, _Argument], _Result], arguments: Sequence[_Argument]
    ) -> list[_Result]:
        """Call ``work`` with each state and its own argument; return the results in the same order."""
        ...


class LocalWorker(Generic[_State]):
    """A single state, in this process."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def call(
        self, work: Callable[[_State, _Argument], _Result], arguments: Sequence[_Argument]
    ) -> list[_Result]:
        """Call ``work`` with the state and the only argument."""
        (argument,) = arguments
        return [work(self._state, argument)]


class ProcessWorkers(Generic[_State]):
    """One process per state, which ends with the block.

    ``states``: small values that are sent to the processes, where they grow.
    """

    def __init__(self, states: Sequence[_State]) -> None:
        self._processes: list[Any] = []
        self._connections: list[Any] = []
        try:
            with hide_main_module():
                for state in states:
                    context = choose_start_method()
                    own, other = context.Pipe()
                    self._connections.append(own)
                    process = context.Process(target=_serve, args=(other, state), daemon=True)
                    process.start()
                    self._processes.append(process)
                    other.close()  # so the end of the process closes the connection
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise WorkerFailed("no process can be started") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, even if they are busy."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()

    def call(
        self, work: Callable[[_State, _Argument], _Result], arguments: Sequence[_Argument]
    ) -> list[_Result]:
        """Call ``work`` in all processes at once, each with its state and its own argument.

        Raises:
            WorkerFailed: A worker died or raised an error.
        """
        raise_lost_interrupt()
        outcomes: list[tuple[Any, str]] = []
        lost: Exception | None = None
        try:
            for connection, argument in zip(self._connections, arguments, strict=True):
                connection.send((work, argument))
            outcomes = [connection.recv() for connection in self._connections]
        except (OSError, EOFError) as error:
            lost = error
        if lost is not None:
            time.sleep(_INTERRUPT_S)  # a Ctrl-C that ended the processes may reach this one a moment later
            raise WorkerFailed("a process died") from lost
        failures = [failure for _, failure in outcomes if failure]
        if failures:
            raise WorkerFailed(failures[0])
        return [result for result, _ in outcomes]


def can_use_processes() -> bool:
    """Return True if this process may have children and has no memory limit that they would inherit."""
    return read_memory_limit() is None and not multiprocessing.current_process().daemon


def _serve(connection: Any, state: object) -> None:
    """Answer calls until the connection closes."""
    set_up_worker()
    with suppress(EOFError, OSError):
        while True:
            work, argument = connection.recv()
            try:
                outcome = work(state, argument), ""
            except Exception as error:
                outcome = None, repr(error)
            connection.send(outcome)
