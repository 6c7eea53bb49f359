"""Find causes, units and ranks of a run by their names: what ``/`` offers, and where each is shown."""

from collections.abc import Sequence

from zprof.tui.popups import PickPopup
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

#: Key of the choice that keeps the focused table filtered.
ROWS = "rows"


def list_targets(loaded: LoadedRun | None) -> list[tuple[str, str]]:
    """Return (key, label) pairs: ``cause 0`` by index, ``unit NAME``, ``rank 5``."""
    if loaded is None:
        return []
    report = loaded.report
    units = dict.fromkeys(unit.unit for unit in report.time.units if unit.unit)
    return [
        *(
            (f"cause {index}", f"cause {finding.cause}: {finding.sentence}")
            for index, finding in enumerate(report.findings)
        ),
        *((f"unit {unit}", f"unit {unit}") for unit in units),
        *((f"rank {rank}", f"rank {rank}") for rank in report.run.ranks_loaded),
    ]


class SearchPopup(PickPopup):
    """Search that filters the focused table, and what else has the text, while it is typed."""

    def __init__(self, choices: Sequence[tuple[str, str]], table: FactTable | None) -> None:
        super().__init__("search", choices)
        self._table, self._text_before = table, table.search_text if table is not None else ""

    def find_matches(self, text: str) -> list[tuple[str, str]]:
        """Return the choices that contain the text; rows of the table first, unless none has it."""
        matches, table = super().find_matches(text), self._table
        if table is None or table.table is None:
            return matches
        table.search(text)
        rows = [(ROWS, f"rows of {table.table.title!r}: {table.match_count}")]
        return [*rows, *matches] if table.match_count else [*matches, *rows]

    def action_close(self) -> None:
        """Close the popup, and filter the table as before."""
        if self._table is not None:
            self._table.search(self._text_before)
        super().action_close()
