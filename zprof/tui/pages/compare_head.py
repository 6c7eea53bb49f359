"""What stands above both runs: which is which, what is shown of them, the verdict."""

from dataclasses import dataclass

from zprof.model.printable import display_width, printable, shorten
from zprof.tui.pages.overview import verdict_words
from zprof.tui.session import Loaded
from zprof.tui.tables import Mark, Word

#: What the line of the names has beside them.
_BESIDE_NAMES = 62
_LONGEST_NAME = 14
#: So many characters at the begin of two names are worth leaving out.
_ALIKE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What of it is shown: only what differs, and times of a step or of a token."""

    only_differences: bool = False
    per_token: bool = False


def head_words(loaded: Loaded, shown: Shown, width: int = 0) -> list[Word]:
    """Which is which, and what is shown of them, in a terminal of so many columns."""
    comparison = loaded.report.comparison
    before = comparison.baseline if comparison else (loaded.both.a.name if loaded.both else "")
    longest = max(_LONGEST_NAME, (width - _BESIDE_NAMES) // 2)
    names = told_apart(before, loaded.report.run.name, longest)
    return [
        Word(f"A {names[0]} (baseline)", Mark.TITLE),
        Word(f"B {names[1]} (this run)", Mark.TITLE),
        Word(f"per {work_unit(loaded) if shown.per_token else 'step'}", Mark.MUTED),
        Word("only differences" if shown.only_differences else "all rows", Mark.MUTED),
    ]


def work_unit(loaded: Loaded) -> str:
    """``token`` or ``sample``: what both work off; empty where that is not known."""
    work = loaded.report.comparison.equal_work if loaded.report.comparison else None
    return work.unit.value.removesuffix("s") if work else ""


def told_apart(before: str, after: str, longest: int) -> tuple[str, str]:
    """Two names in so many columns each: where one has to be cut, what both begin with goes first."""
    names = (printable(before), printable(after))
    alike = next((at for at, (a, b) in enumerate(zip(*names, strict=False)) if a != b), 0)
    if alike >= _ALIKE and max(map(display_width, names)) > longest:
        names = (f"…{names[0][alike:]}", f"…{names[1][alike:]}")
    return shorten(names[0], longest), shorten(names[1], longest)


def short_verdict(loaded: Loaded) -> list[Word]:
    """The verdict without its cause, which the first screen has."""
    status, sentence = verdict_words(loaded.report)
    return [status, Word(sentence.raw.partition(", because ")[0])]
