"""What stands behind the focused finding, where the overview has room for it: its evidence."""

from zprof.tui.figures import Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Column, Line, Table, Word


def evidence_table(loaded: Loaded, place: int) -> Table:
    """The facts that the claim of the finding at a place rests on."""
    found = loaded.report.findings
    facts = found[place].evidence if 0 <= place < len(found) else ()
    stem = f"findings[{place}].evidence"
    return Table(
        name="evidence",
        title=f"evidence of {found[place].id}" if facts else "evidence",
        columns=(Column(title="fact", rest=True), Column(title="value", numeric=True)),
        lines=tuple(
            Line(
                key=str(at),
                cells=(Word(fact.what), figure(loaded.tree, Unit(fact.unit), f"{stem}[{at}].value")),
            )
            for at, fact in enumerate(facts)
        ),
        help="What the finding rests on: facts that were measured, each without the first collective of each "
        "group in the window.",
    )
