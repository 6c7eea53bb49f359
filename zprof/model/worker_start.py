"""Start processes that work for this one: how many, how they are made, and how they end.

They are forked from a process with a single thread, as the command line is before it imports numpy: they run
after milliseconds. From any other process they start from a clean server (forkserver), so that no threads or
locks are copied, which takes as long as starting Python twice.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkContext, ForkServerContext
from types import ModuleType

from zprof.model.memory_limit import read_memory_limit


def count_usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return True if this process has one thread: a copy of it can hold no lock of another thread.

    With a limit on memory, a copy would start with what this process has mapped.
    """
    try:
        return read_memory_limit() is None and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def choose_start_method() -> ForkContext | ForkServerContext:
    """Return how a process is started from this one."""
    if can_fork():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("forkserver")


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Start processes in this block without the caller's main module.

    A new process would import that module, thus run a script again that has no main guard. Its work needs
    nothing of it. A Ctrl-C waits meanwhile: a new process would print where it was.
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
    """Set up a new process, before numpy is imported: it ends at a Ctrl-C, and with its parent.

    If the parent ignores SIGINT, as a background job of a script does, so does the new process.
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
