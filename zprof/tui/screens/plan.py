"""The plan screen: the settings of the run, and the predicted step and peak after changes."""

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from zprof.base.errors import ZprofError
from zprof.model.cursor import Cursor
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.machines import find_machine
from zprof.model.plan import Calibration, Change, Outlook, Prediction
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.planner.plan_request import plan_request
from zprof.planner.request import PlanRequest
from zprof.reports.pages.plan import describe_assumed
from zprof.reports.pages.plan_search import describe_answer, describe_front
from zprof.reports.pages.whatif import (
    build_model_table,
    build_term_table,
    describe_effect,
    describe_model,
    read_measured_memory,
    read_measured_step,
)
from zprof.reports.table import Cell, Mark, Marked, Row, Table
from zprof.tui.background import Answer, Predicting
from zprof.tui.keys import Where, bindings
from zprof.tui.knobs import (
    Knob,
    collect_facts,
    describe_change,
    drop_idle_knobs,
    list_knobs,
    turn_knob,
)
from zprof.tui.popups import TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.shell import format_error, format_gap
from zprof.tui.table_view import get_text, is_of_model
from zprof.tui.theme import get_look
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.knob_list import SCREEN_ACTIONS, KnobList, describe_knob
from zprof.tui.widgets.text import TruncatedText, render_cell

_HELP = (
    "Left: the settings of the run; * marks a change. Right: the step and the memory peak as measured, as "
    "the model of this run computes them, and as predicted.\n"
    "~ before a number: predicted, not measured. enter on a number: formula, source, and the error of the "
    "model on this run. Wide terminals show the range and the model in separate columns.\n"
    "left, right: change a setting; x: reset it to the measured value; X: reset all; m: the peak, or the "
    "model's inputs from the run; e: export the report with this prediction."
)
_HEADLINE_LINES, _GAP_LINES = 3, 2
_MIN_TALL_HEIGHT = 34
#: (minimum terminal width, width of the knobs with their frame).
_KNOB_WIDTHS = ((140, 37), (100, 28), (0, 23))
_FRAME, _LOWER_TABLES = 3, ("peak", "fit")
#: Limit on cached predictions.
_MAX_ANSWERS = 64


#: Shown while a number is being predicted.
PENDING = "..."
_UNCHANGED = "the unchanged run"


class PlannedChange(Struct, frozen=True, kw_only=True):
    """A change, its knobs as text, and the model's answer; ``answer``: None while pending.

    ``words`` is empty if nothing is changed.
    """

    change: Change
    words: str
    answer: Answer | None = None

    @property
    def outlook(self) -> Outlook | None:
        """Return the outlook; None while pending or if the prediction failed."""
        return self.answer if isinstance(self.answer, Outlook) else None

    @property
    def prediction(self) -> Prediction | None:
        """Return the only prediction of the outlook, or None."""
        return next(iter(self.outlook.predictions), None) if self.outlook else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps of the prediction."""
        if isinstance(self.answer, ZprofError):
            return (make_gap("prediction_failed", error=self.answer, hint=self.answer.hint),)
        return self.outlook.gaps if self.outlook else ()


def build_headline(planned: PlannedChange) -> list[Cell]:
    """Build the status of the prediction and a summary sentence."""
    words, found = planned.words or _UNCHANGED, planned.prediction
    if isinstance(planned.answer, ZprofError):
        return [Marked("NOT PREDICTED", Mark.DOUBTFUL), format_error(planned.answer)]
    if planned.answer is None:
        return [Marked("predicting", Mark.MUTED), Marked(f"{words} ...", Mark.MUTED)]
    if found is None:
        return [Marked("NOT PREDICTED", Mark.DOUBTFUL), words]
    if not planned.words:
        text = f"press left or right to change a knob. {describe_model(found)}"
        return [Marked("AS MEASURED", Mark.TITLE), text]
    is_window = planned.outlook is not None and planned.outlook.is_window
    text = f"{found.words or words}: {describe_effect(found, is_window=is_window)}."
    return [Marked("~ PREDICTED", Mark.PREDICTED), text]


def build_planned_tables(report: Report, planned: PlannedChange) -> dict[str, Table]:
    """Build the tables of step, peak and model inputs, with measured and predicted values so far."""
    found = planned.prediction
    report = replace(report, outlook=planned.outlook)
    words = (found.words if found else "") or planned.words
    place = Cursor(report).outlook.predictions[0] if found else None
    period = Outlook(is_window=report.time.is_whole).period
    baseline = read_measured_step(Cursor(report).comparison.baseline_time)
    measured = read_measured_step(Cursor(report).time.per_rank)
    step = build_term_table(place, "step", words, period, measured, baseline)
    peak = build_term_table(place, "memory", words, period, read_measured_memory(report))
    peak = replace(peak, rows=sorted(peak.rows, key=lambda row: not row.total))
    fit = build_model_table(report)
    is_pending = planned.answer is None
    missing = {
        "step": "no step was timed; g explains why",
        "peak": "no memory was measured; g explains why",
        "fit": PENDING if is_pending else "the time of this run could not be modelled; g explains why",
    }
    tables = {"step": _hide_zeros(step), "peak": _hide_zeros(peak), "fit": fit}
    for name, table in tables.items():
        if not table.rows:
            tables[name] = replace(table, note=missing[name])
        elif is_pending:
            tables[name] = _mark_pending(table)
    return tables


def _hide_zeros(table: Table) -> Table:
    """Return the table without terms that are neither measured nor predicted; the sum stays."""

    def is_shown(value: Value) -> bool:
        is_amount = value.unit is not Unit.RATIO and value.how is not Aggregation.DIFFERENCE
        return is_amount and any(digit in value.text for digit in "123456789")

    rows = [
        row
        for row in table.rows
        if row.total or any(is_shown(cell) for cell in row.cells if isinstance(cell, Value))
    ]
    return replace(table, rows=rows, total=len(rows))


def _mark_pending(table: Table) -> Table:
    """Return the table with marks in place of pending predictions."""

    def mark(row: Row) -> Row:
        return replace(
            row,
            cells=tuple(
                Marked(PENDING, Mark.MUTED) if isinstance(cell, Value) and is_of_model(cell) else cell
                for cell in row.cells
            ),
        )

    return replace(table, rows=[mark(row) for row in table.rows])


def describe_layouts(loaded: LoadedRun) -> str:
    """Return the layouts that fit on the devices of a run, fastest first, one per amount of memory.

    The run's parameter count stands for its model: layers are the usual ones of that size.
    """
    training, run = loaded.run.manifest.training, loaded.report.run
    if not training.parameters:
        return format_gap(make_gap("layouts_without_parameters"))
    samples, tokens = training.samples_per_step, training.tokens_per_step
    request = PlanRequest(
        params=training.parameters * training.model_parallel_ranks,
        world=run.world_size,
        global_batch=samples,
        sequence=tokens // samples if tokens and samples else None,
        hardware=run.device if find_machine(run.device) else None,
    )
    try:
        plan = plan_request(request, lambda name, job: job, analyses=("search",))
    except ZprofError as error:
        return format_error(error)
    answers = [*describe_answer(plan), *describe_assumed(plan.job)]
    return "\n".join([*answers, "", *(describe_front(plan.search) if plan.search else ())])


class PlanScreen(PageScreen):
    """Knobs, and measured next to predicted values.

    ``change``: the knob settings. ``planned``: the displayed prediction.
    """

    name_of: ClassVar[str] = "plan"
    page_help: ClassVar[str] = _HELP
    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings(Where.PLAN) if binding.action in SCREEN_ACTIONS
    ]
    CSS: ClassVar[str] = """
    #plan { height: 1fr; }
    #plan #plan-headline { height: auto; max-height: 3; padding: 0 1; }
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
    #: Delay between the last turn of a knob and the start of the prediction.
    pause_s: ClassVar[float] = 0.12

    def __init__(self) -> None:
        super().__init__()
        self.change, self.front = Change(), _LOWER_TABLES[0]
        self.planned = PlannedChange(change=self.change, words="")
        self._filled_run: LoadedRun | None = None
        self._knobs: tuple[Knob, ...] = ()
        self._answers: dict[Change, Answer] = {}
        self._calibration: Calibration | None = None
        self._predicting: Predicting | None = None
        self._pause: Timer | None = None

    @property
    def is_reading(self) -> bool:
        """Return True if a prediction is pending."""
        return self._filled_run is not None and self.planned.answer is None

    def parts(self) -> ComposeResult:
        """Yield the headline, the gaps, the knobs and the tables."""
        with Vertical(id="plan"):
            yield TruncatedText(lines=_HEADLINE_LINES, id="plan-headline")
            yield TruncatedText(lines=_GAP_LINES, id="plan-gaps")
            with Horizontal(id="plan-parts"):
                yield KnobList(id="knobs")
                with Vertical(id="plan-right"):
                    yield FactTable(id="step")
                    yield FactTable(id="peak", classes="fill")
                    yield FactTable(id="fit", classes="fill")

    def fill(self, loaded: LoadedRun, selected: Selection) -> None:
        """Show the unchanged run at once; a newly loaded run resets the knobs."""
        if self._filled_run is None or loaded.pending is not self._filled_run.pending:
            self.change, self._calibration = Change(), None
            self._answers.clear()
        self._filled_run = loaded
        self._show(loaded)

    def on_resize(self, event: events.Resize) -> None:
        """Redo the layout for the new size."""
        self._limit_gap_lines()
        if self.filled is not None:
            self._arrange()

    def on_knob_list_turned(self, event: KnobList.Turned) -> None:
        """Turn the knob by one choice; warn if the knob has no effect."""
        if event.knob.idle:
            self.app.notify(f"{event.knob.title}: {event.knob.idle}", severity="warning", markup=False)
        self._turn(turn_knob(self._knobs, self.change, event.knob.field, event.by))

    def on_knob_list_opened(self, event: KnobList.Opened) -> None:
        """Open a popup on the knob."""
        self.app.push_screen(TextPopup(*describe_knob(event.knob, self.change)))

    def action_reset(self) -> None:
        """Reset the knob under the cursor to its measured value."""
        knob = self.query_one(KnobList).selected_knob
        if knob is not None:
            self._turn(replace(self.change, **{knob.field: None}))

    def action_reset_all(self) -> None:
        """Reset all knobs to their measured values."""
        self._turn(Change())

    def action_layouts(self) -> None:
        """Show which layouts would fit on the run's devices, fastest first."""
        if self._filled_run is not None:
            self.app.push_screen(TextPopup("Layouts for these devices", describe_layouts(self._filled_run)))

    def action_next_table(self) -> None:
        """Switch to the other lower table; if both are visible, move the focus to it."""
        had_focus = self.focused is not None and self.focused.id in _LOWER_TABLES
        index = (
            _LOWER_TABLES.index(str(self.focused.id))
            if had_focus and self.focused
            else _LOWER_TABLES.index(self.front)
        )
        self.front = _LOWER_TABLES[1 - index]
        self._arrange()
        if had_focus or self._is_tall:
            self.query_one(f"#{self.front}").focus()

    def extra_gaps(self) -> tuple[Gap, ...]:
        """Return the gaps of the prediction."""
        return self.planned.gaps

    def make_export(self, loaded: LoadedRun) -> LoadedRun:
        """Return the loaded run with the prediction added to its report."""
        if self.planned.outlook is None or loaded is not self._filled_run:
            return loaded
        return replace(loaded, report=replace(loaded.report, outlook=self.planned.outlook))

    def _turn(self, change: Change) -> None:
        if self._filled_run is not None and change != self.change:
            self.change = change
            self._show(self._filled_run)

    def _show(self, loaded: LoadedRun) -> None:
        """Show knobs and measured numbers at once; start a prediction unless cached."""
        self._knobs = list_knobs(collect_facts(loaded, self._calibration), self.change)
        effective = drop_idle_knobs(self._knobs, self.change)
        self.planned = PlannedChange(
            change=effective,
            words=describe_change(self._knobs, effective),
            answer=self._answers.get(effective),
        )
        if self.planned.answer is None:
            # Predict after a pause, because another knob may be turned; the first time, at once.
            if self._pause is not None:
                self._pause.stop()
            if self._answers:
                self._pause = self.set_timer(self.pause_s, self._start_prediction)
            else:
                self._start_prediction()
        self._draw(loaded)

    def _start_prediction(self) -> None:
        """Start a prediction unless another is running; the latest change follows when it finishes."""
        if self._predicting is None and self._filled_run is not None and self.planned.answer is None:
            self._predicting = Predicting(
                self._filled_run.pending, self.planned.change, self.zprof.predictor, self.post_message
            )
            self.zprof.start_prediction(self._predicting)

    def on_predicting_done(self, event: Predicting.Done) -> None:
        """Cache the answer, and show it if it still matches the knobs."""
        self._predicting, finished = None, event.predicting
        if self._filled_run is None:
            return
        if finished.pending is self._filled_run.pending:
            while len(self._answers) >= _MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[finished.change] = event.answer
            self._calibration = getattr(event.answer, "calibration", None) or self._calibration
        self._show(self._filled_run)

    def _draw(self, loaded: LoadedRun) -> None:
        self._limit_gap_lines()
        # Format the first gap of the prediction with its reason, and the number of gaps if several.
        gaps = [
            format_gap(gap) for gap in self.planned.gaps if not isinstance(self.planned.answer, ZprofError)
        ]
        count = f" (g: all {len(gaps)})" if len(gaps) > 1 else ""
        found = self.planned.prediction
        status = "unknown" if found is not None and found.step and found.memory else "not predicted"
        words, gap = (
            build_headline(self.planned),
            Marked(f"! {status}{count}: {gaps[0]}" if gaps else "", Mark.DOUBTFUL),
        )
        self._show_text("plan-headline", words)
        self._show_text("plan-gaps", [gap])
        self.query_one("#plan-gaps").display = bool(gap.text)
        self.page_help = "\n".join([*map(get_text, words), gap.text, _HELP])  # type: ignore[misc]
        self.query_one(KnobList).show(self._knobs, self.change)
        for name, table in build_planned_tables(loaded.report, self.planned).items():
            self.query_one(f"#{name}", FactTable).show(table)
        self._arrange()

    def _limit_gap_lines(self) -> None:
        """Limit the gaps to one line in short terminals; ``g`` lists all of them."""
        self.query_one("#plan-gaps", TruncatedText).lines = _GAP_LINES if self._is_tall else 1

    def _show_text(self, part: str, words: Sequence[Cell]) -> None:
        """Join the words into one wrapping text and show it."""
        look = get_look(self.app)
        self.query_one(f"#{part}", TruncatedText).show(
            Text(" ").join(render_cell(word, look) for word in words)
        )

    @property
    def _is_tall(self) -> bool:
        return self.app.size.height >= _MIN_TALL_HEIGHT

    def _arrange(self) -> None:
        """Show the step table, and below it one or both of the peak and fit tables."""
        width = self.app.size.width
        self.query_one(KnobList).styles.width = next(
            columns for min_width, columns in _KNOB_WIDTHS if width >= min_width
        )
        for name in _LOWER_TABLES:
            table = self.query_one(f"#{name}", FactTable)
            table.display = self._is_tall or name == self.front
            rows = len(table.table.rows) if table.table else 0
            is_last = name == _LOWER_TABLES[1] or not self._is_tall
            table.styles.height = "1fr" if is_last else max(1, rows) + _FRAME
