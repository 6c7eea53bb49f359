"""Two runs side by side: the same leaves of both, and what differs in how they were run.

Schema ``zprof.compare/1``.  ``None`` is unknown.  Leaves may be added; those that stand here stay.
"""

from dataclasses import dataclass, field

from zprof.model.report import Comparison, RunFacts, Verdict

COMPARE_SCHEMA = "zprof.compare/1"
Figure = int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One leaf of both runs.  ``unit`` is ns, bytes, ratio, count, bytes_per_s or text."""

    name: str
    unit: str
    a: Figure
    b: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that belong together; ``note`` says what their figures are of."""

    title: str
    note: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How both were run: ``where`` is run, training or environment."""

    where: str
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """All of it.  ``verdict`` and ``comparison`` are those of ``b`` against ``a``."""

    schema: str = COMPARE_SCHEMA
    zprof_version: str
    a: RunFacts
    b: RunFacts
    verdict: Verdict
    comparison: Comparison | None
    sections: tuple[Section, ...] = ()
    settings: tuple[Setting, ...] = field(default=())
