"""Daemon threads beside the screens: one measures a run, one predicts a change.

Results come back as messages.
"""

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from zprof.model.errors import ZprofError
from zprof.model.whatif import Change, Outlook
from zprof.tui.session import LoadedRun, Progress, RunRequest

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis


#: Of the collector's three generations (700, 10, 10 where nobody says anything).
_GC_THRESHOLDS = (10_000, 10, 10)


class Loader(Protocol):
    """Measures what was asked for, and tells what it does."""

    def __call__(self, asked: RunRequest, progress: Progress, /) -> LoadedRun:
        """Raises ZprofError for what cannot be measured."""


class Superseded(Exception):
    """Something else was asked for meanwhile."""


class Loading:
    """One measuring.  It posts messages until it is stopped; what comes after that is nobody's.

    The thread is a daemon of no executor: leaving the app does not wait for it.
    """

    class Told(Message):
        """What is done now."""

        def __init__(self, loading: "Loading", doing: str) -> None:
            super().__init__()
            self.loading, self.doing = loading, doing

    class Done(Message):
        """Measured."""

        def __init__(self, loading: "Loading", loaded: LoadedRun) -> None:
            super().__init__()
            self.loading, self.loaded = loading, loaded

    class Failed(Message):
        """Not measured."""

        def __init__(self, loading: "Loading", error: ZprofError) -> None:
            super().__init__()
            self.loading, self.error = loading, error

    def __init__(self, asked: RunRequest, loader: Loader, post: Callable[[Message], object]) -> None:
        """``post`` is called from the thread."""
        self.asked, self._loader, self._post = asked, loader, post
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zprof-measure", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Nobody waits for it any more: it ends when it next tells what it does."""
        self._is_stopped.set()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs, stopped or not."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            loaded = self._loader(self.asked, self._tell)
            _freeze_collector()
            self._send(self.Done(self, loaded))
        except Superseded:
            return
        except ZprofError as error:
            self._send(self.Failed(self, error))
        except Exception as error:  # A fault of zprof: said on the screen, which stays.
            said = ZprofError(
                f"internal error, {type(error).__name__}: {str(error)[:200]}",
                hint="this is a fault of zprof: report what ZPROF_DEBUG=1 zprof report prints",
            )
            self._send(self.Failed(self, said))

    def _tell(self, doing: str) -> None:
        if self._is_stopped.is_set():
            raise Superseded
        self._send(self.Told(self, doing))

    def _send(self, message: Message) -> None:
        if not self._is_stopped.is_set():
            self._post(message)


def _freeze_collector() -> None:
    """Look for garbage seldom, and not in what was measured, which stays: that stops the screen.

    Of 1024 ranks one look through all of it takes 0.3 s; and what a screen is made of, a hundred thousand
    objects, would cause such a look each time that one is drawn first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class Predictor(Protocol):
    """Says what changes would make of a run."""

    def __call__(self, analysis: "RunAnalysis", changes: tuple[Change, ...], /) -> Outlook:
        """Raises ZprofError for what cannot be predicted."""


def predict(analysis: "RunAnalysis", changes: tuple[Change, ...], /) -> Outlook:
    """The planner's answer; it is imported when it is asked first."""
    from zprof.planner.whatif.outlook import predict_changes

    return predict_changes(analysis, changes)


Answer = Outlook | ZprofError


class Predicting:
    """One change, predicted.  The thread is a daemon of no executor: leaving the app does not wait for it."""

    class Done(Message):
        """An outlook, or why there is none."""

        def __init__(self, predicting: "Predicting", answer: Answer) -> None:
            super().__init__()
            self.predicting, self.answer = predicting, answer

    def __init__(
        self,
        analysis: "RunAnalysis",
        change: Change,
        predictor: Predictor,
        post: Callable[[Message], object],
    ) -> None:
        """``post`` is called from the thread."""
        self.analysis, self.change = analysis, change
        self._predictor, self._post = predictor, post
        self._thread = threading.Thread(target=self._run, name="zprof-predict", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        answer = self._answer()
        with suppress(RuntimeError):  # the app was left meanwhile
            self._post(self.Done(self, answer))

    def _answer(self) -> Answer:
        try:
            return self._predictor(self.analysis, (self.change,))
        except ZprofError as error:
            return error
        except Exception as error:  # A fault of zprof: said on the screen, which stays.
            return ZprofError(
                f"internal error, {type(error).__name__}: {str(error)[:200]}",
                hint="this is a fault of zprof: report what ZPROF_DEBUG=1 zprof whatif prints",
            )
