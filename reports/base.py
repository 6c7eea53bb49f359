"""What a renderer is: a function from the report to text; it reads leaves and computes nothing."""

from dataclasses import dataclass
from typing import Protocol

from zprof.model.report import Report


class Render(Protocol):
    """A report in, the text of one format out."""

    def __call__(self, report: Report) -> str:
        """The whole document, with a line break at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format by name, and the file suffixes that mean it."""

    name: str
    suffixes: tuple[str, ...]
    render: Render
