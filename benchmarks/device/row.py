"""What a check says of itself: one row of the result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``reason`` is one line, None where all is well; ``figures`` are the check's own."""

    check: str
    status: Status
    reason: str | None = None
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def line(self) -> str:
        """For people."""
        tail = "" if self.reason is None else f": {self.reason}"
        return f"{self.check:<18} {self.seconds:6.1f} s  {self.status}{tail}"


class NotMeasured(Exception):
    """A check cannot be made here; the message is the one-line reason."""


class CheckFailed(Exception):
    """A check was made and its result is wrong; ``figures`` are what was seen."""

    def __init__(self, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


def one_line(text: object) -> str:
    """The text without line breaks, shortened."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= 300 else joined[:297] + "..."
