"""Define the comparison of two runs: the same leaves of both, and the differences in their settings.

Schema ``zprof.compare/1``. ``None`` is unknown. Leaves may be added, but never removed or renamed.
"""

from dataclasses import dataclass, field

from zprof.model.report import Comparison, RunFacts, Verdict

COMPARE_SCHEMA = "zprof.compare/1"
ComparedValue = int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One number of both runs; ``unit`` is ns, bytes, ratio, count, bytes_per_s or text.

    ``leaf``: the entry of the catalogue of numbers that describes it, empty if there is none.
    """

    name: str
    unit: str
    a: ComparedValue
    b: ComparedValue
    leaf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSection:
    """A group of rows; ``note`` describes what their figures refer to."""

    title: str
    note: str
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of both runs; ``where`` is its source: run, training or environment."""

    where: str
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The comparison of two runs; ``verdict`` and ``comparison`` are for ``b`` against ``a``."""

    schema: str = COMPARE_SCHEMA
    zprof_version: str
    a: RunFacts
    b: RunFacts
    verdict: Verdict
    comparison: Comparison | None
    sections: tuple[ComparedSection, ...] = ()
    settings: tuple[Setting, ...] = field(default=())
