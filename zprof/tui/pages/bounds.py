"""Numbers of which a bound only is known: where ranks are missing, a wait is at least, a transfer at most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zprof.tui.figures import Figure, How, Unit, figure

AT_LEAST, AT_MOST, EXACT = "≥ ", "≤ ", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Figure):
    """A figure with a sign before it."""

    sign: str

    @property
    def text(self) -> str:
        """``≥ 12.0``; without the sign where it is unknown."""
        shown = str(Figure.text.fget(self))  # type: ignore[attr-defined]
        return shown if self.value is None else f"{self.sign}{shown}"


def marked(found: Figure, sign: str) -> Figure:
    """The same figure with the sign where there is one."""
    if not sign:
        return found
    return Bound(value=found.value, unit=found.unit, leaves=found.leaves, how=found.how, sign=sign)


def bound_figure(
    tree: Mapping[str, Any], unit: Unit, *leaves: str, sign: str = EXACT, how: How = How.LEAF
) -> Figure:
    """The figure of these leaves, with the sign where there is one."""
    return marked(figure(tree, unit, *leaves, how=how), sign)
