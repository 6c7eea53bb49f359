"""Daemon threads that measure a run and predict the effect of a change.

Results come back as Textual messages.
"""

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.message import Message

from zprof.base.errors import ZprofError
from zprof.model.plan import Change, Outlook
from zprof.tui.session import LoadedRun, PendingAnalysis, Progress, RunRequest

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis


#: Thresholds of the three generations of Python's garbage collector; the default is (700, 10, 10).
_GC_THRESHOLDS = (10_000, 10, 10)


#: Measures a request and reports progress; raises a ZprofError if the run cannot be measured.
Loader = Callable[[RunRequest, Progress], LoadedRun]


class Superseded(Exception):
    """Raised in the loader thread after a newer request has replaced its request."""


class Loading:
    """One measurement in a background thread, which posts messages until stopped.

    A plain daemon thread instead of an executor, because exiting the app must not wait for it.
    """

    class Progressed(Message):
        """Progress: the current stage of the measurement."""

        def __init__(self, loading: "Loading", doing: str) -> None:
            super().__init__()
            self.loading, self.doing = loading, doing

    class Measured(Message):
        """The numbers are known; causes are still looked for."""

        def __init__(self, loading: "Loading", loaded: LoadedRun) -> None:
            super().__init__()
            self.loading, self.loaded = loading, loaded

    class Done(Message):
        """The measurement finished."""

        def __init__(self, loading: "Loading", loaded: LoadedRun) -> None:
            super().__init__()
            self.loading, self.loaded = loading, loaded

    class Failed(Message):
        """The measurement failed."""

        def __init__(self, loading: "Loading", error: ZprofError) -> None:
            super().__init__()
            self.loading, self.error = loading, error

    def __init__(self, request: RunRequest, loader: Loader, post: Callable[[Message], object]) -> None:
        """Prepare the thread; ``post`` will be called from it."""
        self.request, self._loader, self._post = request, loader, post
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zprof-measure", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Discard all further messages; the thread ends at its next progress report."""
        self._is_stopped.set()

    @property
    def is_alive(self) -> bool:
        """Return True if the thread is still running, even after ``stop``."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            loaded = self._loader(self.request, self._report_progress)
            _freeze_collector()
            self._send(self.Done(self, loaded))
            with suppress(ZprofError):  # what needs the tables says why it has none
                loaded.pending.get()
            _freeze_collector()
        except Superseded:
            return
        except ZprofError as error:
            self._send(self.Failed(self, error))
        except Exception as error:  # a bug in zprof: report it and keep the screen alive
            self._send(self.Failed(self, _make_internal_error(error, "zprof report")))

    def _report_progress(self, doing: str | LoadedRun) -> None:
        if self._is_stopped.is_set():
            raise Superseded
        message = self.Progressed(self, doing) if isinstance(doing, str) else self.Measured(self, doing)
        self._send(message)

    def _send(self, message: Message) -> None:
        if not self._is_stopped.is_set():
            self._post(message)


def _make_internal_error(error: Exception, command: str) -> ZprofError:
    return ZprofError(
        f"internal error, {type(error).__name__}: {str(error)[:200]}",
        hint=f"this is a bug in zprof: please report it with the output of ZPROF_DEBUG=1 {command}",
    )


def _freeze_collector() -> None:
    """Exclude the loaded run from garbage collection, and collect less often.

    With 1024 ranks loaded, a full collection stalls the screen for 0.3 s. The first draw of a screen
    allocates about 100,000 objects, which would trigger a full collection each time.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


#: Predicts a run with changes applied; raises a ZprofError if that is impossible.
Predictor = Callable[["RunAnalysis", tuple[Change, ...]], Outlook]


def predict(analysis: "RunAnalysis", changes: tuple[Change, ...], /) -> Outlook:
    """Return the planner's outlook; the planner is imported on first use."""
    from zprof.planner.whatif import predict_changes

    return predict_changes(analysis, changes)


Answer = Outlook | ZprofError


class Predicting:
    """One prediction in a background thread.

    A plain daemon thread instead of an executor, because exiting the app must not wait for it.
    """

    class Done(Message):
        """The prediction finished, with an outlook or an error."""

        def __init__(self, predicting: "Predicting", answer: Answer) -> None:
            super().__init__()
            self.predicting, self.answer = predicting, answer

    def __init__(
        self,
        pending: PendingAnalysis,
        change: Change,
        predictor: Predictor,
        post: Callable[[Message], object],
    ) -> None:
        """Prepare the thread; ``post`` will be called from it."""
        self.pending, self.change = pending, change
        self._predictor, self._post = predictor, post
        self._thread = threading.Thread(target=self._run, name="zprof-predict", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return True if the thread is still running."""
        return self._thread.is_alive()

    def _run(self) -> None:
        answer: Answer
        try:
            answer = self._predictor(self.pending.get(), (self.change,))
        except ZprofError as error:
            answer = error
        except Exception as error:  # a bug in zprof: report it and keep the screen alive
            answer = _make_internal_error(error, "zprof whatif")
        with suppress(RuntimeError):  # the app has exited in the meantime
            self._post(self.Done(self, answer))
