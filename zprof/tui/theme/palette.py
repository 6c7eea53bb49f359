"""Tenants, kinds of time and marks: a glyph and a colour each.

Colours are those of Okabe and Ito: the six differ for every kind of colour blindness.  A glyph says the
same without colour, and a letter where a terminal has no such glyphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zprof.model.tenants import Tenant
from zprof.tui.tables import Mark

UNTAGGED, RESERVED_UNUSED, NON_PYTORCH = "untagged", "reserved_unused", "non_pytorch"


class Look(StrEnum):
    """What a terminal can show."""

    DARK = "dark"
    LIGHT = "light"
    MONO = "mono"


@dataclass(frozen=True, slots=True)
class Paint:
    """A glyph, its letter, and a colour on dark and on light ground."""

    glyph: str
    letter: str
    dark: str
    light: str

    def colour(self, look: Look) -> str:
        """A colour that rich understands; empty without colours."""
        return {Look.DARK: self.dark, Look.LIGHT: self.light, Look.MONO: ""}[look]

    def shown(self, *, ascii_only: bool) -> str:
        """The glyph, or the letter."""
        return self.letter if ascii_only else self.glyph


_GREY = ("#C0C0C0", "#5F5F5F")
TENANTS: Mapping[str, Paint] = {
    Tenant.PARAMETERS: Paint("█", "P", "#0072B2", "#0072B2"),
    Tenant.GRADIENTS: Paint("▓", "G", "#E69F00", "#E69F00"),
    Tenant.OPTIMIZER_STATE: Paint("▒", "O", "#009E73", "#009E73"),
    Tenant.ACTIVATIONS: Paint("░", "A", "#CC79A7", "#CC79A7"),
    Tenant.TEMPORARY_BUFFERS: Paint("▄", "T", "#D55E00", "#D55E00"),
    Tenant.COMMUNICATION_BUFFERS: Paint("▚", "C", "#56B4E9", "#56B4E9"),
    UNTAGGED: Paint("?", "?", *_GREY),
    RESERVED_UNUSED: Paint("·", ".", *_GREY),
    NON_PYTORCH: Paint(":", ":", *_GREY),
}
#: Kinds of time: terms of the ledger, and lanes.  Exposed is solid, hidden is dashed.
TIMES: Mapping[str, Paint] = {
    "compute_ns": Paint("█", "#", "#56B4E9", "#0072B2"),
    "exposed_transfer_ns": Paint("━", "=", "#E8743B", "#B84A00"),
    "exposed_wait_ns": Paint("▒", "w", "#E69F00", "#B37400"),
    "exposed_memcpy_ns": Paint("▄", "m", "#CC79A7", "#A94F83"),
    "idle_ns": Paint("·", ".", *_GREY),
    "unexplained_ns": Paint("?", "?", *_GREY),
    "overlapped_ns": Paint("╌", "-", "#2DB88A", "#00795A"),
}
MARKS: Mapping[Mark, Paint] = {
    Mark.PLAIN: Paint("", "", "", ""),
    Mark.MUTED: Paint("", "", "#9A9A9A", "#6A6A6A"),
    Mark.GOOD: Paint("✓", "+", "#2DB88A", "#00795A"),
    Mark.BAD: Paint("✗", "x", "#E8743B", "#B84A00"),
    Mark.DOUBTFUL: Paint("!", "!", "#E69F00", "#8A5A00"),
    Mark.TITLE: Paint("", "", "bold", "bold"),
    Mark.PREDICTED: Paint("~", "~", "#B7A5FF", "#5A3FA8"),
}
#: Steps of the heat map, from least to most: cividis, which reads in grey and for every kind of sight.
HEAT: tuple[str, ...] = (
    "#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#E1CC55",
    "#FEE838",
)  # fmt: skip
HEAT_GLYPHS = " ·:-=+*#%@"
