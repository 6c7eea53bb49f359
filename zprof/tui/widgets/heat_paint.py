"""How a cell of a heat map looks: a colour of the ramp, or a glyph where there are no colours."""

from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from zprof.tui.tables import Mark
from zprof.tui.theme.palette import HEAT, HEAT_GLYPHS, MARKS, Look

_UNKNOWN, _FAR, _DOT = "?", "!", "·"
#: From this step of the ramp on, what is written on a cell is black.
_BRIGHT = 5
_FRAMED = 2
_GAP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatPaint:
    """The ramp in a look."""

    look: Look
    ascii_only: bool = False

    def cell(self, level: int, *, far: bool, width: int, focused: bool) -> list[Segment]:
        """One cell: ``?`` unknown, ``!`` far above the rest; the focused one in brackets.

        One that is too narrow for brackets, or has no colour, is shown in reverse.
        """
        gap = 1 if width >= _GAP else 0
        fill = width - gap
        text = self._glyph(level) * fill
        if far:
            middle = (fill - 1) // 2
            text = text[:middle] + _FAR + text[middle + 1 :]
        framed = focused and fill >= _FRAMED
        if framed:
            text = f"[{text[1:-1]}]"
        plain = self.look is Look.MONO or level < 0
        parts = [Segment(text, self._style(level, bold=focused, reverse=focused and (plain or not framed)))]
        return [*parts, Segment(" ")] if gap else parts

    def scale(self) -> list[Segment]:
        """All steps of the ramp."""
        return [Segment(self._glyph(level), self._style(level)) for level in range(len(HEAT))]

    def plain(self, text: str) -> Segment:
        """Text as it is."""
        return Segment(text)

    def bold(self, text: str) -> Segment:
        """What is focused."""
        return Segment(text, Style(bold=True))

    def muted(self, text: str) -> Segment:
        """What is beside it."""
        colour = MARKS[Mark.MUTED].colour(self.look)
        return Segment(text, Style(color=colour) if colour else Style())

    def _glyph(self, level: int) -> str:
        if level < 0:
            return _UNKNOWN
        if self.look is not Look.MONO and not self.ascii_only:
            return " "
        glyph = HEAT_GLYPHS[level]
        return "." if self.ascii_only and glyph == _DOT else glyph

    def _style(self, level: int, *, bold: bool = False, reverse: bool = False) -> Style:
        if self.look is Look.MONO or level < 0:
            return Style(bold=bold, reverse=reverse)
        ink = "#000000" if level >= _BRIGHT else "#FFFFFF"
        return Style(color=ink, bgcolor=HEAT[level], bold=bold, reverse=reverse)
