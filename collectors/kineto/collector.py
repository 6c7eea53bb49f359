"""Records where the time of a window of steps went, with torch's own profiler.

Shapes are recorded (bytes of collectives come from them) and all threads, so that a communication
thread written in Python is seen too.  Memory is not: it would slow the steps, and torch cannot do both
``profile_memory`` and ``profile_all_threads``.
"""

import errno
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zprof.collectors.kineto.convert import convert, report_gaps
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.collectors.kineto.waits import WaitRanges
from zprof.collectors.profiler_session import TAKEN, TAKEN_REMEDY, ProfilerSession, activities
from zprof.model.gaps import Gap


class KinetoCollector:
    """The collector of the time window: tables ``events`` and ``collectives``."""

    def __init__(self) -> None:
        self._profile: torch.profiler.profile | None = None
        self._session: ProfilerSession | None = None
        self._waits = WaitRanges()
        self._gaps: list[Gap] = []
        self._tables: Mapping[str, Mapping[str, Sequence[Any]]] | None = None

    def start(self) -> None:
        """Open the window.

        Raises:
            RuntimeError: the program runs a profiler of its own.
        """
        profile = torch.profiler.profile(
            activities=activities(), record_shapes=True, experimental_config=self._all_threads()
        )
        session = ProfilerSession(profile)
        session.start()
        self._profile, self._session = profile, session
        try:
            self._waits.install()
        except RuntimeError as error:
            self._gaps.append(_no_waits(error))

    def stop(self) -> None:
        """Close the window and put ``Work.wait`` back."""
        self._waits.remove()
        if self._session is None:
            return
        self._session.stop()
        if self._session.taken:
            self._profile = None
            self._gaps.append(Gap(what="time window", reason=TAKEN, remedy=TAKEN_REMEDY))
        self._session = None

    def tables(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """The window as tables."""
        return self._convert()

    def gaps(self) -> Sequence[Gap]:
        """What the window does not show."""
        self._convert()
        return tuple(self._gaps)

    def _convert(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        if self._tables is None:
            self._tables = {}
            if self._profile is not None:
                self._tables, gaps = _export(self._profile)
                self._gaps += gaps
                self._profile = None
        return self._tables

    def _all_threads(self) -> Any:
        try:
            return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except (AttributeError, TypeError):
            self._gaps.append(_no_threads())
            return None


def _export(profile: torch.profiler.profile) -> tuple[Mapping[str, Mapping[str, Sequence[Any]]], list[Gap]]:
    with tempfile.TemporaryDirectory(prefix="zprof-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        if not path.is_file():  # torch reports nothing when it cannot write
            raise OSError(errno.ENOSPC, f"torch's profiler could not write its trace to {folder}")
        trace = read_trace(path)
    tables, gaps = convert(trace)
    return tables, report_gaps(trace.report) + gaps


def _no_waits(error: Exception) -> Gap:
    return Gap(
        what="waits for collectives",
        reason=str(error),
        remedy="write ::wait ranges (docs/recording.md), or use a newer torch",
    )


def _no_threads() -> Gap:
    return Gap(
        what="threads other than the main one",
        reason="this torch cannot profile all threads",
        remedy="use torch 2.8 or newer",
    )
