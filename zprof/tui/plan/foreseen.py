"""Numbers that no run was measured for: what the model of a run says, and what it predicts.

Their leaves are those of ``Report.outlook``, which ``e`` on the Plan screen writes with the report, and
``zprof whatif -f json`` prints.
"""

from dataclasses import dataclass
from typing import Any

from zprof.tui.figures import UNKNOWN, Figure

#: Before every predicted number, whatever the colours.
SIGN = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen(Figure):
    """A number of the model: of the run as it was, or predicted for the changed one.

    ``words``: as it is shown.  ``said``: what it rests on, in lines.  ``assumption``: its key in the outlook.
    """

    words: str
    said: str
    assumption: str
    is_predicted: bool

    @property
    def text(self) -> str:
        """With the sign where it is predicted."""
        if self.value is None:
            return UNKNOWN
        return f"{SIGN}{self.words}" if self.is_predicted else self.words

    def in_report(self) -> tuple[Figure, ...]:
        """None: a report that was measured has no outlook; a test of its own holds it against that."""
        return ()

    def in_json(self) -> dict[str, Any]:
        """And that it is predicted, and what from."""
        kind = "predicted" if self.is_predicted else "modelled"
        return {**Figure.in_json(self), "is": kind, "shown": self.text, "assumption": self.assumption}
