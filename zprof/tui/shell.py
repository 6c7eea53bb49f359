"""The app's state apart from keys and screens.

The run, how far it is measured, the selected rank and step.
"""

from typing import Protocol, runtime_checkable

from zprof.model.errors import ZprofError
from zprof.model.formatting import printable
from zprof.tui.background import Loader, Loading, Predicting, Predictor, predict
from zprof.tui.session import LoadedRun, RunPreview, RunRequest, Selection, keep_selection, load
from zprof.tui.theme import ThemedApp

_ERROR_SECONDS = 20


@runtime_checkable
class Refillable(Protocol):
    """A screen that shows what was loaded."""

    def refill(self) -> None:
        """Show what has changed."""


class Shell(ThemedApp):
    """One run, and a baseline beside it.

    ``look`` is what the manifest tells, ``loaded`` what was measured: None until then.
    """

    def __init__(
        self,
        asked: RunRequest,
        *,
        loaded: LoadedRun | None = None,
        ascii_only: bool = False,
        mono: bool = False,
        loader: Loader = load,
        predictor: Predictor = predict,
    ) -> None:
        """``loaded``: what was measured already, which is then not measured again."""
        super().__init__(ascii_only=ascii_only, mono=mono)
        self.asked = asked
        self.look: RunPreview | None = None
        self.loaded = loaded
        self.selected = keep_selection(loaded.report, Selection()) if loaded else Selection()
        self.predictor = predictor
        self._loader = loader
        self._loading: Loading | None = None
        self._stopped: list[Loading] = []
        self._predicting: Predicting | None = None
        self._doing = "opening"

    @property
    def is_measuring(self) -> bool:
        """Whether something is being measured; ``waiting_text`` says what."""
        return self._loading is not None

    @property
    def has_threads(self) -> bool:
        """Whether a thread still measures or predicts, be it for nobody."""
        threads = (self._loading, *self._stopped, self._predicting)
        return any(one.is_alive for one in threads if one is not None)

    def begin(self, predicting: Predicting) -> None:
        """Predict beside the screens; one at a time is for whoever asks to see to."""
        self._predicting = predicting
        predicting.start()

    def waiting_text(self) -> str:
        """What is being done, or why nothing is loaded."""
        return f"{self._doing} ..." if self.is_measuring else self._doing

    def measure(self, asked: RunRequest, *, loader: Loader | None = None) -> None:
        """Measure this beside the screens; what was measured until now is given up.

        ``loader``: how, where not as the app does.
        """
        self.clear_notifications()
        if self._loading is not None:
            self._loading.stop()
            self._stopped = [one for one in (*self._stopped, self._loading) if one.is_alive]
        self._loading = Loading(asked, loader or self._loader, self.post_message)
        self._loading.start()
        self.say("opening")

    def on_loading_told(self, event: Loading.Told) -> None:
        """Said in the status line."""
        if event.loading is self._loading:
            self.say(event.doing)

    def on_loading_done(self, event: Loading.Done) -> None:
        """Show it; rank and step stay where they are in it, too."""
        if event.loading is not self._loading:
            return
        self._loading, self.asked, self.loaded = None, event.loading.asked, event.loaded
        self.look = RunPreview(facts=event.loaded.report.run)
        self.selected = keep_selection(event.loaded.report, self.selected)
        self.clear_notifications()
        self.refill()

    def on_loading_failed(self, event: Loading.Failed) -> None:
        """Said on the screen; what was loaded before stays."""
        if event.loading is not self._loading:
            return
        self._loading = None
        self.say(format_error(event.error))
        self.notify(format_error(event.error), severity="error", markup=False, timeout=_ERROR_SECONDS)

    def say(self, doing: str) -> None:
        """What is being done, or went wrong, in the status line."""
        self._doing = printable(doing)
        self.refill()

    def refill(self) -> None:
        """The screen in front, or below what is opened, shows what has changed."""
        for screen in self.screen_stack:
            if isinstance(screen, Refillable):
                screen.refill()

    def select(self, rank: int | None = None, step: int | None = None) -> None:
        """Show this rank, or this step, from now on."""
        self.selected = Selection(
            rank=self.selected.rank if rank is None else rank,
            step=self.selected.step if step is None else step,
        )
        self.refill()

    def action_show(self, name: str) -> None:
        """Switch to a screen, where the app has it."""


def format_error(error: ZprofError) -> str:
    """The error with its remedy."""
    return printable(f"{error} ({error.hint})" if error.hint else str(error))
