"""Sample where in the program the training thread is during the time window, for file and line of a finding.

A thread takes a stack every 20 ms. On a CPU rank, reading a scalar is faster than that, so callers of such
reads are recorded separately. Samples and stacks are bounded, whatever the length of the window.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

#: Period of the samples; it doubles whenever there are too many of them, and every second one is dropped.
_PERIOD_S = 0.02
_MAX_SAMPLES = 400
_MAX_READS = 4_000
_MAX_STACKS = 1_000
#: Number of innermost frames kept per stack.
_MAX_FRAMES = 64
#: Methods of a tensor that return its value to Python.
_READS = ("item", "__bool__", "__float__", "__int__")

TIMER, READ = "timer", "read"

_Stack = tuple[tuple[CodeType, int], ...]


class HostStacks:
    """Collect the tables ``host_sample`` and ``host_stack`` of the thread that calls ``start``."""

    def __init__(self) -> None:
        self._thread_id = 0
        self._is_paused = False
        self._ended = threading.Event()
        self._sampler: threading.Thread | None = None
        self._reads = _ReadLog(self._number)
        self._numbers: dict[_Stack, int] = {}
        self._unused_number = itertools.count()
        self._samples: list[tuple[int, int]] = []

    def start(self) -> None:
        """Start sampling the calling thread."""
        self._thread_id = threading.get_ident()
        self._sampler = threading.Thread(target=self._sample, name="zprof-stacks", daemon=True)
        self._sampler.start()
        self._reads.install()

    def stop(self) -> None:
        """Stop sampling and restore the methods of tensors."""
        self._reads.remove()
        self._ended.set()
        if self._sampler is not None:
            self._sampler.join(timeout=1)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Take no samples in this context: the thread runs the recorder."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def tables(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """Return the recorded columns by table name."""
        rows = sorted(
            [(time_ns, TIMER, stack) for time_ns, stack in list(self._samples)]
            + [(time_ns, READ, stack) for time_ns, stack in self._reads.calls]
        )
        frames = [
            (number, depth, code.co_filename, line, code.co_name)
            for stack, number in list(self._numbers.items())
            for depth, (code, line) in enumerate(stack)
        ]
        return {
            "host_sample": _make_columns(("time_ns", "kind", "stack"), rows),
            "host_stack": _make_columns(("stack", "depth", "file", "line", "function"), frames),
        }

    def _sample(self) -> None:
        period = _PERIOD_S
        try:
            while not self._ended.wait(period):
                if self._is_paused:
                    continue
                frame = sys._current_frames().get(self._thread_id)
                number = self._number(frame)
                del frame  # it would keep the program's variables alive until the next sample
                if number is not None:
                    self._samples.append((time.time_ns(), number))
                if len(self._samples) > _MAX_SAMPLES:
                    self._samples = self._samples[::2]
                    period *= 2
        except Exception:  # without samples findings name no line; nothing else depends on them
            return

    def _number(self, frame: FrameType | None) -> int | None:
        """Return the number of a frame's stack; None if there are too many stacks."""
        # Code and line of the frame and its callers, innermost first.
        entries: list[tuple[CodeType, int]] = []
        while frame is not None and len(entries) < _MAX_FRAMES:
            entries.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        stack = tuple(entries)
        known = self._numbers.get(stack)
        if known is None and stack and len(self._numbers) < _MAX_STACKS:
            return self._numbers.setdefault(stack, next(self._unused_number))  # safe between two threads
        return known


class _ReadLog:
    """Record when tensors are read back, and the stack of each caller, between ``install`` and ``remove``."""

    def __init__(self, number: Callable[[FrameType], int | None]) -> None:
        self.calls: list[tuple[int, int]] = []
        self._number = number
        self._stack_by_caller: dict[tuple[CodeType, int], int | None] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {}
        self._active = False

    def install(self) -> None:
        """Wrap the methods, except those that the program has replaced."""
        self._active = True
        for name in _READS:
            if name not in vars(torch.Tensor):
                self._wrap(name)

    def remove(self) -> None:
        """Restore the methods; a wrapper that was wrapped in the meantime stays in place, inactive."""
        self._active = False
        for name, wrapper in self._wrappers.items():
            if vars(torch.Tensor).get(name) is wrapper:
                delattr(torch.Tensor, name)
        self._wrappers = {}

    def _wrap(self, name: str) -> None:
        original = getattr(torch.Tensor, name)

        def read(tensor: Any, *arguments: Any) -> Any:
            if not torch.compiler.is_compiling() and self._active:  # a compiler traces the method alone
                self._note(sys._getframe(1))
            return original(tensor, *arguments)

        self._wrappers[name] = read
        setattr(torch.Tensor, name, read)

    def _note(self, frame: FrameType) -> None:
        if len(self.calls) >= _MAX_READS:
            return
        caller = (frame.f_code, frame.f_lasti)
        if caller not in self._stack_by_caller:
            self._stack_by_caller[caller] = self._number(frame)
        stack = self._stack_by_caller[caller]
        if stack is not None:
            self.calls.append((time.time_ns(), stack))


def _make_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}
