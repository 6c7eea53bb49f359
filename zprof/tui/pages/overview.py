"""The first screen's tables: the ledger, which sums, and findings by what they save."""

from zprof.model.findings import Confidence
from zprof.model.printable import shorten
from zprof.model.report import Report, VerdictStatus
from zprof.model.time import LEDGER_TERMS
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, Word

_STATUS = {
    VerdictStatus.OK: ("✓ OK", Mark.GOOD),
    VerdictStatus.SLOWER: ("✗ SLOWER", Mark.BAD),
    VerdictStatus.RISK: ("! RISK", Mark.DOUBTFUL),
    VerdictStatus.INCONCLUSIVE: ("? INCONCLUSIVE", Mark.DOUBTFUL),
}
_LONGEST_DIFFERENCES = 28
_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"


def verdict_words(report: Report) -> list[Word]:
    """Status, unless the sentence begins with it, and the sentence."""
    word, mark = _STATUS[report.verdict.status]
    return [Word(word, mark), Word(report.verdict.sentence.removeprefix(word[2:]).strip())]


def ledger_table(loaded: Loaded) -> Table:
    """The step by terms: means over the ranks, which sum to the step; with a baseline, its side too."""
    compared = loaded.report.comparison is not None and loaded.report.comparison.step_time is not None
    columns = [Column(title="step", says="terms of the step's wall time"), _number("ms"), _number("of step")]
    if compared:
        columns += [_number("baseline ms"), _number("change ms")]
    lines = [_term(loaded, "wall_ns", "step time", compared=compared)]
    lines += [
        _term(loaded, term, term.removesuffix("_ns").replace("_", " "), compared=compared)
        for term in LEDGER_TERMS
    ]
    return Table(
        name="ledger",
        title="where a step goes",
        columns=tuple(columns),
        lines=tuple(lines) if loaded.report.time.per_rank else (),
        help="Means over ranks and steps. The terms sum to the step time.",
        note="mean over ranks",
    )


def _number(title: str) -> Column:
    return Column(title=title, numeric=True)


def _term(loaded: Loaded, term: str, name: str, *, compared: bool) -> Line:
    tree = loaded.tree
    cells: list[Cell] = [
        Word(name),
        figure(tree, Unit.MS, f"{_RANKS}.{term}", how=How.MEAN),
        figure(tree, Unit.RATIO, f"{_RANKS}.{term}", f"{_RANKS}.wall_ns", how=How.SHARE),
    ]
    if compared:
        change = f"comparison.ledger_delta.{term}"
        cells.append(figure(tree, Unit.MS, f"{_BASELINE}.{term}", how=How.MEAN))
        cells.append(
            figure(tree, Unit.MS, "comparison.ledger_delta[*]", how=How.SUM, signed=True)
            if term == "wall_ns"
            else figure(tree, Unit.MS, change, signed=True)
        )
    return Line(key=term, cells=tuple(cells), mark=Mark.TITLE if term == "wall_ns" else Mark.PLAIN)


def findings_table(loaded: Loaded) -> Table:
    """Findings in the order of the report."""
    columns = (
        Column(title="finding"),
        _number("saves"),
        _number("to"),
        Column(title="confidence"),
        Column(title="what"),
    )
    lines = [
        Line(
            key=str(place),
            cells=(
                Word(found.id),
                *_saving(loaded, place),
                Word(found.confidence.value),
                Word(found.sentence),
            ),
            opens=Opens.FINDING,
            target=place,
            mark=Mark.MUTED if found.confidence is Confidence.LOW else Mark.PLAIN,
        )
        for place, found in enumerate(loaded.report.findings)
    ]
    return Table(
        name="findings",
        title="why, and what to change",
        columns=columns,
        lines=tuple(lines),
        help="By what a fix saves in a step, or frees of memory. Those of low confidence are notes.",
    )


def _saving(loaded: Loaded, place: int) -> tuple[Figure, Figure]:
    found = loaded.report.findings[place]
    stem = f"findings[{place}]"
    if found.saving_bytes is not None and not found.saving_ns[1]:
        low, high = (figure(loaded.tree, Unit.BYTES, f"{stem}.saving_bytes[{end}]") for end in (0, 1))
    else:
        low, high = (figure(loaded.tree, Unit.NS, f"{stem}.saving_ns[{end}]") for end in (0, 1))
    return low, high


def warning(report: Report) -> str:
    """That the jobs are not the same, and what in them is simulated; empty where there is nothing to say.

    One line: what is cut off at its end are the facts of the simulation, never that there was one.
    """
    comparison = report.comparison
    baseline = comparison.baseline_run if comparison else None
    said = []
    if comparison is not None and comparison.differences:
        differing = ", ".join(entry.what for entry in comparison.differences)
        said.append(f"not the same job: {shorten(differing, _LONGEST_DIFFERENCES)}")
    facts = dict.fromkeys(fact for run in (report.run, baseline) if run is not None for fact in run.modelled)
    if facts:
        said.append(f"MODELLED, not measured: {'; '.join(sorted(facts, key=_is_no_link))}")
    return " · ".join(said)


def _is_no_link(fact: str) -> bool:
    return not fact.startswith("link")


def warning_word(report: Report) -> Word:
    """The same as a cell."""
    said = warning(report)
    return Word(f"! {said}" if said else "", Mark.DOUBTFUL)
