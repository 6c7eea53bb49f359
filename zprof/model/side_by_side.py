"""Define the comparison of two runs: the same leaves of both, and the differences in their settings.

Schema ``zprof.compare/1``. ``None`` is unknown. Leaves may be added, but never removed or renamed.
"""

from msgspec import Struct, field

from zprof.model.report import Comparison, RunFacts, Verdict

COMPARE_SCHEMA = "zprof.compare/1"
ComparedValue = int | float | str | None


class ComparedRow(Struct, frozen=True, kw_only=True):
    """One number of both runs; ``unit`` is ns, bytes, ratio, count, bytes_per_s or text.

    ``leaf``: the entry of the catalogue of numbers that describes it, empty if there is none.
    """

    name: str
    unit: str
    a: ComparedValue
    b: ComparedValue
    leaf: str = ""


class ComparedSection(Struct, frozen=True, kw_only=True):
    """A group of rows; ``note`` describes what their figures refer to."""

    title: str
    note: str
    rows: tuple[ComparedRow, ...]


class Setting(Struct, frozen=True, kw_only=True):
    """A setting of both runs; ``where`` is its source: run, training or environment."""

    where: str
    name: str
    a: str | None
    b: str | None


class SideBySide(Struct, frozen=True, kw_only=True):
    """The comparison of two runs; ``verdict`` and ``comparison`` are for ``b`` against ``a``."""

    schema: str = COMPARE_SCHEMA
    zprof_version: str
    a: RunFacts
    b: RunFacts
    verdict: Verdict
    comparison: Comparison | None
    sections: tuple[ComparedSection, ...] = ()
    settings: tuple[Setting, ...] = field(default=())
