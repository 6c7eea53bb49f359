"""App state without keys and screens: the run, loading progress, selected rank and step."""

from typing import Protocol, runtime_checkable

from zprof.base.errors import ZprofError
from zprof.base.formatting import printable
from zprof.model.gaps import Gap
from zprof.tui.background import Loader, Loading, Predicting, Predictor, predict
from zprof.tui.session import LoadedRun, RunPreview, RunRequest, Selection, keep_selection, load
from zprof.tui.theme import ThemedApp

_ERROR_SECONDS = 20


@runtime_checkable
class Refillable(Protocol):
    """A screen that shows loaded data."""

    def refill(self) -> None:
        """Show changed data."""


class Shell(ThemedApp):
    """State of one run with an optional baseline.

    ``preview``: manifest facts. ``loaded``: the measured run. Each is None until available.
    """

    def __init__(
        self,
        request: RunRequest,
        *,
        loaded: LoadedRun | None = None,
        ascii_only: bool = False,
        mono: bool = False,
        loader: Loader = load,
        predictor: Predictor = predict,
    ) -> None:
        """Set up the app; do not measure a run passed as ``loaded`` again."""
        super().__init__(ascii_only=ascii_only, mono=mono)
        self.request = request
        self.preview: RunPreview | None = None
        self.loaded = loaded
        self.selected = keep_selection(loaded.report, Selection()) if loaded else Selection()
        self.predictor = predictor
        self._loader = loader
        self._loading: Loading | None = None
        self._stopped: list[Loading] = []
        self._predicting: Predicting | None = None
        self._status = "opening"

    @property
    def is_measuring(self) -> bool:
        """Return True while a run is being measured; ``waiting_text`` returns the stage."""
        return self._loading is not None

    @property
    def has_threads(self) -> bool:
        """Return True if a measuring or predicting thread is alive, even after ``stop``."""
        threads = (self._loading, *self._stopped, self._predicting)
        return any(thread.is_alive for thread in threads if thread is not None)

    def start_prediction(self, predicting: Predicting) -> None:
        """Start a prediction in the background; the caller runs only one at a time."""
        self._predicting = predicting
        predicting.start()

    def waiting_text(self) -> str:
        """Return the current loading stage, or the reason why nothing is loaded."""
        return f"{self._status} ..." if self.is_measuring else self._status

    def measure(self, request: RunRequest, *, loader: Loader | None = None) -> None:
        """Measure a run in the background, stopping a measurement in progress.

        ``loader`` overrides the app's own loader.
        """
        self.clear_notifications()
        if self._loading is not None:
            self._loading.stop()
            self._stopped = [loading for loading in (*self._stopped, self._loading) if loading.is_alive]
        self._loading = Loading(request, loader or self._loader, self.post_message)
        self._loading.start()
        self.say("opening")

    def on_loading_progressed(self, event: Loading.Progressed) -> None:
        """Show the progress in the status line."""
        if event.loading is self._loading:
            self.say(event.doing)

    def on_loading_measured(self, event: Loading.Measured) -> None:
        """Show the numbers of the run, unless a run with findings is shown already."""
        if event.loading is self._loading and self.loaded is None:
            self._take(event.loaded)

    def on_loading_done(self, event: Loading.Done) -> None:
        """Show the measured run; keep the selected rank and step if the run has them."""
        if event.loading is not self._loading:
            return
        self._loading, self.request = None, event.loading.request
        self._take(event.loaded)
        self.clear_notifications()

    def _take(self, loaded: LoadedRun) -> None:
        self.loaded, self.preview = loaded, RunPreview(facts=loaded.report.run)
        self.selected = keep_selection(loaded.report, self.selected)
        self.refill()

    def on_loading_failed(self, event: Loading.Failed) -> None:
        """Show the error; a previously loaded run stays."""
        if event.loading is not self._loading:
            return
        self._loading = None
        self.say(format_error(event.error))
        self.notify(format_error(event.error), severity="error", markup=False, timeout=_ERROR_SECONDS)

    def say(self, doing: str) -> None:
        """Set the status line: the loading stage, or an error."""
        self._status = printable(doing)
        self.refill()

    def refill(self) -> None:
        """Refill all screens in the stack, including the screen below a popup."""
        for screen in self.screen_stack:
            if isinstance(screen, Refillable):
                screen.refill()

    def select(self, rank: int | None = None, step: int | None = None) -> None:
        """Select a rank, a step, or both."""
        self.selected = Selection(
            rank=self.selected.rank if rank is None else rank,
            step=self.selected.step if step is None else step,
        )
        self.refill()

    def action_show(self, name: str) -> None:
        """Do nothing; an app with several screens overrides this to switch screens."""


def format_gap(gap: Gap) -> str:
    """Format a gap as one line: what is missing, why, and the remedy."""
    remedy = f"; remedy: {gap.remedy}" if gap.remedy else ""
    return f"{gap.what}: {gap.reason}{remedy}"


def format_error(error: ZprofError) -> str:
    """Return the error message with its hint."""
    return printable(f"{error} ({error.hint})" if error.hint else str(error))
