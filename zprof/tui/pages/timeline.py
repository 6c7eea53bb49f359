"""The ledger of one step of one rank in a line: the terms that its lanes are drawn of."""

from zprof.tui.figures import Unit
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT, bound_figure
from zprof.tui.session import Loaded, Selected
from zprof.tui.tables import Column, Line, Table
from zprof.tui.theme.palette import TIMES

#: Terms in the order in which they are shown, with their words; the last is no term of the sum.
_TERMS = (
    ("compute_ns", "compute"),
    ("exposed_transfer_ns", "transfer"),
    ("exposed_wait_ns", "wait"),
    ("exposed_memcpy_ns", "copies"),
    ("idle_ns", "idle"),
    ("unexplained_ns", "unexpl."),
    ("overlapped_ns", "hidden"),
)
_SIGNS = {"exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_MOST}
_SAYS = {
    "compute_ns": "the rank computes",
    "exposed_transfer_ns": "bytes move, and nothing computes",
    "exposed_wait_ns": "a collective waits for the last rank, and nothing computes",
    "exposed_memcpy_ns": "only copies or fills run",
    "idle_ns": "nothing runs: the host launches, or does something else",
    "unexplained_ns": "the trace is silent, or a wait has no collective",
    "overlapped_ns": "collectives run that hold nothing up; not part of the sum",
}


def step_table(loaded: Loaded, selected: Selected, *, ascii_only: bool = False) -> Table:
    """One row in milliseconds; none where the step was not timed.  Titles are the key to the glyphs.

    Of a rank with collectives that not all ranks were seen in, the wait and the transfer are bounds.
    """
    columns = [Column(title="step ms", says="wall time of the step", numeric=True)]
    for term, word in _TERMS:
        glyph = TIMES[term].shown(ascii_only=ascii_only)
        columns.append(Column(title=f"{glyph} {word}", says=_SAYS[term], numeric=True))
    place = step_place(loaded, selected)
    return Table(
        name="step",
        title="the step, in ms",
        columns=tuple(columns),
        lines=(_line(loaded, place),) if place is not None else (),
        help="The ledger of this step on this rank, in ms. The lanes below are drawn of the same instants.",
    )


def step_place(loaded: Loaded, selected: Selected) -> int | None:
    """Where the report has this step of this rank."""
    for place, entry in enumerate(loaded.report.time.steps):
        if entry.rank == selected.rank and entry.step == selected.step:
            return place
    return None


def _line(loaded: Loaded, place: int) -> Line:
    stem = f"time.steps[{place}]"
    rank = loaded.report.time.steps[place].rank
    is_split = all(entry.unsplit_ns == 0 for entry in loaded.report.time.per_rank if entry.rank == rank)
    signs = {} if is_split else _SIGNS
    return Line(
        key="step",
        cells=tuple(
            bound_figure(loaded.tree, Unit.MS, f"{stem}.{term}", sign=signs.get(term, EXACT))
            for term in ("wall_ns", *(term for term, _ in _TERMS))
        ),
    )
