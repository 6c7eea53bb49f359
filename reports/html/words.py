"""Names, style classes and marks that several sections share, and how long a text from a run may be."""

from collections.abc import Sequence

from zprof.model.printable import printable, printable_lines, shorten
from zprof.model.tenants import SHOWN, Tenant
from zprof.reports.html.blocks import Column, LegendEntry, Row, Table
from zprof.reports.shown.memory_names import tenant_name

UNTAGGED = "untagged"


def tenant_kind(name: str) -> str:
    """The style class of a tenant; only for names of ``ORDER``."""
    return f"tenant-{name.replace('_', '-')}"


#: Letters of the tenants, as in the terminal without glyphs.
LETTERS: dict[str, str] = {
    Tenant.PARAMETERS.value: "P",
    Tenant.GRADIENTS.value: "G",
    Tenant.OPTIMIZER_STATE.value: "O",
    Tenant.ACTIVATIONS.value: "A",
    Tenant.TEMPORARY_BUFFERS.value: "T",
    Tenant.COMMUNICATION_BUFFERS.value: "C",
    UNTAGGED: "?",
}
#: Bottom to top, and left to right: what stays comes before what comes and goes.
ORDER = (*(tenant.value for tenant in SHOWN), UNTAGGED)
LEGEND = tuple(
    LegendEntry(kind=tenant_kind(name), letter=LETTERS[name], name=tenant_name(name)) for name in ORDER
)
NOTHING = "-"
_NAME, _SENTENCE = 160, 2_000


def name(text: object, most: int = _NAME) -> str:
    """A name from a run: inert and not too long; the JSON has all of it."""
    return shorten(printable(text), most)


def sentence(text: object) -> str:
    """A sentence that may hold names from a run."""
    return shorten(printable(text), _SENTENCE)


def lines(text: object) -> tuple[str, ...]:
    """The lines of a fix."""
    return tuple(shorten(line, _SENTENCE) for line in printable_lines(text))


def left_out(shown: int, known: int, what: str) -> tuple[str, ...]:
    """The line that says what a table leaves out, and where all of it is."""
    return (f"{shown:,} of {known:,} {what}; all of them: zprof report RUN -f json",) if known > shown else ()


def numbers(titles: Sequence[str], unit: str) -> tuple[Column, ...]:
    """Columns of numbers in one unit."""
    return tuple(Column(title=title, unit=unit, numeric=True) for title in titles)


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    folded_from: int = 24,
) -> tuple[Table, ...]:
    """A table of texts; none without rows, folded with very many."""
    if not rows:
        return ()
    return (
        Table(
            caption=caption,
            columns=tuple(columns),
            rows=tuple(Row(cells=tuple(cells)) for cells in rows),
            notes=tuple(notes),
            folded=len(rows) >= folded_from,
        ),
    )
