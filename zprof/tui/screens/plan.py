"""The plan: knobs of the run, and what turning them is predicted to make of its step and its peak."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Calibration, Change
from zprof.tui.keys import Where, bindings
from zprof.tui.plan.fit import fit_table
from zprof.tui.plan.head import gaps_word, headline
from zprof.tui.plan.knob import Knob
from zprof.tui.plan.knobs import asked, changes_said, facts_of, knobs_of, turned
from zprof.tui.plan.planned import Planned
from zprof.tui.plan.predicting import Answer, Predicting
from zprof.tui.plan.tables import peak_table, step_table
from zprof.tui.popups.text import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Word
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.cut_text import CutText
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.knob_list import OF_SCREEN, KnobList, knob_said
from zprof.tui.widgets.paint import cell_text

_HELP = (
    "Knobs on the left: what is changed of the run, marked by *. On the right the step and the peak: as "
    "measured, as the model of this run gives them, and as they are predicted.\n"
    "~ before a number: predicted, not measured. enter on a number: formula, source, and the error of the "
    "model on this run. Wide terminals have the range and the model in columns of their own.\n"
    "left, right: turn a knob; x: this one as measured; X: all of them; m: the peak, or what the model took "
    "from the run; e: the report with this prediction."
)
_SAID_LINES, _GAP_LINES = 3, 2
_TALL = 34
#: Columns of the knobs with their frame, and of the terminal from which on they have so many.
_KNOBS = ((140, 37), (100, 28), (0, 23))
_FRAME, _BELOW = 3, ("peak", "fit")
#: Answers that are kept: of all choices of some knobs.
_MOST_ANSWERS = 64


class PlanScreen(PageScreen):
    """Knobs, and measured beside predicted.  ``change`` is what the knobs say, ``planned`` what is shown."""

    name_of: ClassVar[str] = "plan"
    help_of: ClassVar[str] = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [
        each for each in bindings(Where.PLAN) if each.action in OF_SCREEN
    ]
    CSS: ClassVar[str] = """
    #plan { height: 1fr; }
    #plan #plan-said { height: auto; max-height: 3; padding: 0 1; }
    #plan-gaps { height: auto; max-height: 2; padding: 0 1; }
    #plan-parts { height: 1fr; }
    #knobs { border: round $foreground 40%; max-height: 100%; }
    #knobs { border-title-color: $foreground; border-subtitle-color: $text-muted; }
    #knobs:focus { border: round $accent; }
    #knobs:nocolor { border: round $foreground; }
    #knobs:nocolor:focus { border: heavy $foreground; }
    .-ascii #knobs { border: ascii $foreground 40%; }
    .-ascii #knobs:focus { border: ascii $accent; }
    #plan-right { width: 1fr; height: 1fr; }
    #plan-right FactTable { scrollbar-size-horizontal: 0; }
    """
    #: Seconds from the last turn of a knob until it is asked what that makes.
    pause_s: ClassVar[float] = 0.12

    def __init__(self) -> None:
        super().__init__()
        self.change, self.front = Change(), _BELOW[0]
        self.planned = Planned(change=self.change, words="")
        self._of: Loaded | None = None
        self._knobs: tuple[Knob, ...] = ()
        self._answers: dict[Change, Answer] = {}
        self._calibration: Calibration | None = None
        self._predicting: Predicting | None = None
        self._pause: Timer | None = None

    @property
    def is_reading(self) -> bool:
        """Whether a prediction is on its way."""
        return self._of is not None and self.planned.answer is None

    def parts(self) -> ComposeResult:
        """What is predicted in words, knobs, and tables."""
        with Vertical(id="plan"):
            yield CutText(lines=_SAID_LINES, id="plan-said")
            yield CutText(lines=_GAP_LINES, id="plan-gaps")
            with Horizontal(id="plan-parts"):
                yield KnobList(id="knobs")
                with Vertical(id="plan-right"):
                    yield FactTable(id="step")
                    yield FactTable(id="peak", classes="fill")
                    yield FactTable(id="fit", classes="fill")

    def fill(self, loaded: Loaded, selected: Selected) -> None:
        """The run as it is at once; another run has knobs of its own."""
        if loaded is not self._of:
            self._of, self.change, self._calibration = loaded, Change(), None
            self._answers.clear()
        self._show(loaded)

    def on_resize(self, event: events.Resize) -> None:
        """More or fewer tables, and lines, fit."""
        self._cut_gaps()
        if self.filled is not None:
            self._arrange()

    def on_knob_list_turned(self, event: KnobList.Turned) -> None:
        """By one choice, where there is one and it means something."""
        if event.knob.idle:
            self.app.notify(f"{event.knob.title}: {event.knob.idle}", severity="warning", markup=False)
        self._turn(turned(self._knobs, self.change, event.knob.field, event.by))

    def on_knob_list_opened(self, event: KnobList.Opened) -> None:
        """What the knob does."""
        self.app.push_screen(TextPopup(*knob_said(event.knob, self.change)))

    def action_reset(self) -> None:
        """The knob under the cursor as it was measured."""
        knob = self.query_one(KnobList).under
        if knob is not None:
            self._turn(replace(self.change, **{knob.field: None}))

    def action_reset_all(self) -> None:
        """All knobs as measured."""
        self._turn(Change())

    def action_next_table(self) -> None:
        """The other of the tables below; where both are seen, the focus goes there."""
        had = self.focused is not None and self.focused.id in _BELOW
        at = _BELOW.index(str(self.focused.id)) if had and self.focused else _BELOW.index(self.front)
        self.front = _BELOW[1 - at]
        self._arrange()
        if had or self._is_tall:
            self.query_one(f"#{self.front}").focus()

    def further_gaps(self) -> tuple[Gap, ...]:
        """What is not predicted."""
        return self.planned.gaps

    def to_write(self, loaded: Loaded) -> Loaded:
        """The report with what is predicted here."""
        if self.planned.outlook is None or loaded is not self._of:
            return loaded
        return replace(loaded, report=replace(loaded.report, outlook=self.planned.outlook))

    def _turn(self, change: Change) -> None:
        if self._of is not None and change != self.change:
            self.change = change
            self._show(self._of)

    def _show(self, loaded: Loaded) -> None:
        """Knobs and measured numbers at once; what is not predicted yet is asked for."""
        self._knobs = knobs_of(facts_of(loaded, self._calibration), self.change)
        wanted = asked(self._knobs, self.change)
        self.planned = Planned(
            change=wanted, words=changes_said(self._knobs, wanted), answer=self._answers.get(wanted)
        )
        if self.planned.answer is None:
            self._ask()
        self._draw(loaded)

    def _ask(self) -> None:
        """After a pause, in which another knob may be turned; of a run that is shown first, at once."""
        if self._pause is not None:
            self._pause.stop()
        if self._answers:
            self._pause = self.set_timer(self.pause_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        """One at a time: when that is there, what was asked for last is next."""
        if self._predicting is None and self._of is not None and self.planned.answer is None:
            self._predicting = Predicting(
                self._of.analysis, self.planned.change, self.zprof.predictor, self.post_message
            )
            self.zprof.begin(self._predicting)

    def on_predicting_done(self, event: Predicting.Done) -> None:
        """Kept, and shown where it still is what was asked for."""
        self._predicting, done = None, event.predicting
        if self._of is None:
            return
        if done.analysis is self._of.analysis:
            while len(self._answers) >= _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[done.change] = event.answer
            self._calibration = getattr(event.answer, "calibration", None) or self._calibration
        self._show(self._of)

    def _draw(self, loaded: Loaded) -> None:
        self._cut_gaps()
        words, gap = headline(self.planned), gaps_word(self.planned)
        self._say("plan-said", words)
        self._say("plan-gaps", [gap])
        self.query_one("#plan-gaps").display = bool(gap.raw)
        self.help_of = "\n".join([*(word.text for word in words), gap.text, _HELP])  # type: ignore[misc]
        self.query_one(KnobList).show(self._knobs, self.change)
        self.query_one("#step", FactTable).show(step_table(loaded, self.planned))
        self.query_one("#peak", FactTable).show(peak_table(loaded, self.planned))
        self.query_one("#fit", FactTable).show(fit_table(self.planned))
        self._arrange()

    def _cut_gaps(self) -> None:
        """To one line in low terminals; g lists them all."""
        self.query_one("#plan-gaps", CutText).lines = _GAP_LINES if self._is_tall else 1

    def _say(self, part: str, words: Sequence[Word]) -> None:
        """Joined they wrap, which a cell does not."""
        look = look_of(self.app)
        self.query_one(f"#{part}", CutText).show(Text(" ").join(cell_text(word, look) for word in words))

    @property
    def _is_tall(self) -> bool:
        return self.app.size.height >= _TALL

    def _arrange(self) -> None:
        """The step always; below it the peak and the fit, or one of them."""
        width = self.app.size.width
        self.query_one(KnobList).styles.width = next(columns for least, columns in _KNOBS if width >= least)
        for name in _BELOW:
            table = self.query_one(f"#{name}", FactTable)
            table.display = self._is_tall or name == self.front
            rows = len(table.table.lines) if table.table else 0
            is_last = name == _BELOW[1] or not self._is_tall
            table.styles.height = "1fr" if is_last else max(1, rows) + _FRAME
