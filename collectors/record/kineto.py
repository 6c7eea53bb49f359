"""Record a window of steps with torch's profiler, and convert its trace.

Shapes are recorded because the bytes of collectives are computed from them; all threads are recorded to
include communication threads written in Python. Memory is not recorded: it would slow the steps, and torch
cannot combine ``profile_memory`` with ``profile_all_threads``. Each ``Work.wait`` becomes a profiler range,
because gloo writes no event when a thread waits for a collective; waits inside C++ (the DDP reducer) are not
recorded. Python stacks are sampled at the same time (:mod:`zprof.collectors.record.host_stacks`).
"""

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from zprof.collectors.read.kineto.convert import SequenceNumbers, Tables, convert_trace, list_read_gaps
from zprof.collectors.read.kineto.reading.reader import read_trace
from zprof.collectors.record.base import WindowRows, first_line
from zprof.collectors.record.host_stacks import HostStacks
from zprof.collectors.record.profiler_session import (
    PendingWorks,
    ProfilerSession,
    list_activities,
)
from zprof.collectors.record.torch_private import profile_all_threads_config, work_class
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.files import open_scratch_folder

#: An anonymous wait in the grammar of ``zprof.run.ranges``.
WAIT_RANGE = "zprof::wait"


class KinetoCollector:
    """Collect the time window: tables ``events``, ``collectives``, ``host_sample`` and ``host_stack``."""

    def __init__(self) -> None:
        self._profile: torch.profiler.profile | None = None
        self._session: ProfilerSession | None = None
        self._waits = WaitRanges()
        self._stacks = HostStacks()
        self._works = PendingWorks()
        self._sequences = SequenceNumbers()
        self._can_cut = True
        self._gaps: list[Gap] = []
        self._tables: Mapping[str, Mapping[str, Sequence[Any]]] | None = None

    def start(self) -> None:
        """Start the profiler.

        Raises:
            RuntimeError: the program is running its own profiler.
        """
        self._start_session()
        try:
            self._waits.install()
        except RuntimeError as error:
            self._gaps.append(make_gap("waits_not_recordable", error=error))
        try:
            self._stacks.start()
        except (RuntimeError, AttributeError, TypeError) as error:
            self._gaps.append(make_gap("stacks_not_sampled", error=first_line(error)))
        self._works.install()

    def cut(self) -> WindowRows | None:
        """Return the events and collectives since the last chunk; a new session has started.

        Collectives must be complete before a session stops: gloo writes their end into its memory.
        """
        if self._session is None or not self._can_cut:
            return None
        self._can_cut = False
        with self._waits.pause(), self._stacks.pause():
            self._works.wait_pending()
            profile = self._stop_session()
            self._start_session()
            self._can_cut = True
            if profile is None:
                return None
            tables, gaps = _export_tables(profile)
            self._add_gaps(gaps)
            self._sequences.continue_in(tables)
            return WindowRows(complete=tables, event_count=len(tables["events"]["start_ns"]))

    def stop(self) -> None:
        """Stop the profiler, and restore ``Work.wait`` and the methods of tensors."""
        self._stacks.stop()
        self._waits.remove()
        self._works.remove()
        self._profile = self._stop_session()

    def tables(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """Return the tables of the window."""
        return self._convert()

    def gaps(self) -> Sequence[Gap]:
        """Return a gap for everything that could not be recorded."""
        self._convert()
        return tuple(self._gaps)

    def _convert(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        if self._tables is None:
            self._tables = {}
            if self._profile is not None:
                tables, gaps = _export_tables(self._profile)
                self._profile = None
                self._sequences.continue_in(tables)
                self._tables = {**tables, **self._stacks.tables()}
                self._add_gaps(gaps)
        return self._tables

    def _start_session(self) -> None:
        activities, config = list_activities(), None
        try:
            config = profile_all_threads_config()
        except (AttributeError, TypeError):
            self._add_gaps([make_gap("threads_not_profiled")])
        profile = torch.profiler.profile(
            activities=activities, record_shapes=True, experimental_config=config
        )
        session = ProfilerSession(profile)
        session.start()
        self._profile, self._session = profile, session

    def _stop_session(self) -> torch.profiler.profile | None:
        """Stop the session, and return its profile unless the program has taken the profiler over."""
        session, self._session = self._session, None
        profile, self._profile = self._profile, None
        if session is None:
            return profile
        session.stop()
        if not session.was_taken_over:
            return profile
        self._add_gaps([make_gap("profiler_taken_over")])
        return None

    def _add_gaps(self, gaps: Sequence[Gap]) -> None:
        """Add the gaps of a chunk, except kinds that an earlier chunk already had."""
        known = {(gap.kind, gap.what) for gap in self._gaps}
        self._gaps += [gap for gap in gaps if (gap.kind, gap.what) not in known]


def _export_tables(
    profile: torch.profiler.profile,
) -> tuple[Tables, list[Gap]]:
    with open_scratch_folder("trace") as folder:
        path = folder / "trace.json"
        profile.export_chrome_trace(str(path))
        profile.profiler = None  # its events, which the garbage collector would find late
        if not path.is_file():  # torch reports no error if it cannot write
            raise OSError(errno.ENOSPC, f"torch's profiler could not write its trace to {folder}")
        trace = read_trace(path)
    tables, gaps = convert_trace(trace)
    return tables, list_read_gaps(trace.report) + gaps


class WaitRanges:
    """Wrap ``torch.distributed.Work.wait`` between ``install`` and ``remove``."""

    def __init__(self) -> None:
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None
        self._active = False

    def install(self) -> None:
        """Start writing ranges.

        Raises:
            RuntimeError: this torch has no ``Work.wait`` to wrap.
        """
        work = work_class()
        if work is None:
            raise RuntimeError("this torch has no Work.wait to wrap")
        self._original = work.wait
        self._wrapper = self._wrap(work.wait)
        self._active = True
        work.wait = self._wrapper

    def remove(self) -> None:
        """Restore the original method; a wrapper that was wrapped in the meantime stays in place,
        inactive.
        """
        self._active = False
        work = work_class()
        if work is not None and self._wrapper is not None and work.wait is self._wrapper:
            work.wait = self._original
        self._wrapper = None

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Write no ranges in this context."""
        was_active, self._active = self._active, False
        try:
            yield
        finally:
            self._active = was_active

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any, **options: Any) -> Any:
            if not self._active:
                return original(*arguments, **options)
            with torch.profiler.record_function(WAIT_RANGE):
                return original(*arguments, **options)

        return wait
