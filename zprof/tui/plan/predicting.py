"""Predicts beside the screen, one change at a time: of those asked for meanwhile only the last one counts."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from zprof.model.errors import ZprofError
from zprof.model.planning.whatif import Change, Outlook

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis


class Predictor(Protocol):
    """Says what changes would make of a run."""

    def __call__(self, analysis: "RunAnalysis", changes: tuple[Change, ...], /) -> Outlook:
        """Raises ZprofError for what cannot be predicted."""


def predict(analysis: "RunAnalysis", changes: tuple[Change, ...], /) -> Outlook:
    """The planner's answer; it is imported when it is asked first."""
    from zprof.planner.whatif.outlook import outlook

    return outlook(analysis, changes)


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
