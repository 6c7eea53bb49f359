"""The first screen: the verdict, the ledger, findings by what they save, and what is left over."""

from zprof.model.findings import Confidence, Finding
from zprof.model.printable import shorten
from zprof.model.report import Report, VerdictStatus
from zprof.reports.presenters.findings import grouped_gaps
from zprof.reports.presenters.time_figures import LEDGER
from zprof.tui.figures import Figure, How, Range, Unit, figure, ranged
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, Word

_STATUS = {
    VerdictStatus.OK: ("✓ OK", Mark.GOOD),
    VerdictStatus.SLOWER: ("✗ SLOWER", Mark.BAD),
    VerdictStatus.RISK: ("! RISK", Mark.DOUBTFUL),
    VerdictStatus.INCONCLUSIVE: ("? INCONCLUSIVE", Mark.DOUBTFUL),
}
_LONGEST_DIFFERENCES = 28
#: What a table without findings says, by whether anything was not tested.
_NO_FINDING = ("all that zprof tests for was tested", "what was not tested, and why, is said below")
#: After a word: text of one line, or of several.
_NEXT_LINE = (" ", "\n")


def verdict_words(report: Report) -> list[Word]:
    """Status with its sign, and the sentence without it."""
    word, mark = _STATUS[report.verdict.status]
    return [Word(word, mark), Word(report.verdict.sentence.removeprefix(word[2:]).strip())]


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


def findings_table(loaded: Loaded) -> Table:
    """Findings in the order of the report: by what a fix saves."""
    columns = (
        Column(title="finding"),
        Column(title="saves", numeric=True, says="what a fix saves in a step, or frees on the largest rank"),
        Column(title="sure", says="how sure the rule is"),
        Column(title="frees", numeric=True, from_width=110, says="memory of the largest rank"),
        Column(title="what", rest=True),
    )
    found = loaded.report.findings
    return Table(
        name="findings",
        title=_findings_title(loaded.report),
        columns=columns,
        lines=tuple(_finding(loaded, place, one) for place, one in enumerate(found)),
        help="By what a fix saves in a step, or frees of memory. Those of low confidence are notes.",
        note="enter: evidence, fix, how to disprove it" if found else _NO_FINDING[bool(loaded.report.gaps)],
    )


def _findings_title(report: Report) -> str:
    if report.findings:
        return "why, and what to change"
    if not report.time.per_rank:
        return "no step was timed: what costs time was not tested"
    return "nothing to change: no cause that was tested was found"


def _finding(loaded: Loaded, place: int, found: Finding) -> Line:
    frees = _range(loaded, place, "saving_bytes", Unit.BYTES) if found.saving_bytes else None
    saves = _range(loaded, place, "saving_ns", Unit.NS) if found.saving_ns[1] else None
    return Line(
        key=str(place),
        cells=(
            Word(found.id),
            saves or frees or Word(""),
            Word(found.confidence.value),
            frees or Word(""),
            Word(found.sentence),
        ),
        opens=Opens.FINDING,
        target=place,
        mark=Mark.MUTED if found.confidence is Confidence.LOW else Mark.PLAIN,
    )


def _range(loaded: Loaded, place: int, name: str, unit: Unit) -> Range:
    low, high = (figure(loaded.tree, unit, f"findings[{place}].{name}[{end}]") for end in (0, 1))
    return ranged(low, high)


def told_of(report: Report, place: int, *, whole: bool = False) -> str:
    """The focused finding: its sentence, where the verdict is not that already, and the fix's first line.

    ``whole``: all of both, and how to disprove it, where there is room.
    """
    if not 0 <= place < len(report.findings):
        return ""
    found = report.findings[place]
    if whole:
        parts = {found.id: found.sentence, "fix": found.fix.strip(), "to disprove it": found.disprove}
        return "\n".join(f"{name}:{_NEXT_LINE[_is_long(said)]}{said}" for name, said in parts.items())
    first, *more = found.fix.strip().split("\n")
    fix = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    sentence = "" if found.sentence in report.verdict.sentence else f"{found.id} {found.sentence}. "
    return f"{sentence}fix: {fix}{' …' if len(more) > 1 else ''}"


def untested_of(report: Report) -> str:
    """Where there are no findings: what could not be tested or measured, each with its reason."""
    said = [f"{gap.what.removesuffix(' not tested')}: {gap.reason}" for gap in grouped_gaps(report.gaps)]
    return "\n".join(["not tested:", *said]) if said else ""


def _is_long(text: str) -> bool:
    return "\n" in text


def rest_table(loaded: Loaded) -> Table:
    """Memory, what no finding claims, what was not tested: a line each."""
    lines = [*_memory(loaded), *_headroom(loaded), *_unclaimed(loaded), *_untested(loaded.report)]
    columns = (
        Column(title=""),
        Column(title="", numeric=True),
        Column(title=""),
        Column(title="", numeric=True),
        Column(title="", rest=True),
    )
    help_text = (
        "The largest peak, beside the baseline's; unclaimed: what is lost in a step and no finding claims, "
        "beside the whole step; what zprof could not test or measure: enter there says why, and what helps."
    )
    return Table(name="rest", title="", columns=columns, lines=tuple(lines), help=help_text)


def _memory(loaded: Loaded) -> list[Line]:
    report = loaded.report
    if not report.memory.per_rank:
        return []
    peak = _largest(loaded, "memory.per_rank[*].peak_bytes")
    before = report.comparison.baseline_memory if report.comparison else ()
    was: Cell = _largest(loaded, "comparison.baseline_memory[*].peak_bytes") if before else Word("")
    says = "in the baseline; largest rank of each" if before else "on the largest rank"
    return [_line("memory", "peak memory", peak, "was" if before else "", was, says)]


def _headroom(loaded: Loaded) -> list[Line]:
    """Of the fullest device, where the device's own counters are known."""
    known = [
        (device.device_total_bytes - device.device_used_bytes, place, device.rank)
        for place, device in enumerate(loaded.report.memory.devices)
        if device.device_total_bytes is not None and device.device_used_bytes is not None
    ]
    if not known:
        return []
    _, place, rank = min(known)
    stem = f"memory.devices[{place}]"
    total = f"{stem}.device_total_bytes"
    free = figure(loaded.tree, Unit.BYTES, total, f"{stem}.device_used_bytes", how=How.DIFFERENCE)
    whole = figure(loaded.tree, Unit.BYTES, total)
    return [_line("headroom", "headroom", free, "of", whole, f"of the device of rank {rank}, the fullest")]


def _unclaimed(loaded: Loaded) -> list[Line]:
    left = {term: ns for term, ns in loaded.report.unclaimed.items() if ns > 0}
    if not left or not loaded.report.time.per_rank:
        return []
    most = max(left, key=lambda term: left[term])
    ranks = [entry.rank for entry in loaded.report.time.per_rank]
    rank = loaded.report.unclaimed_rank
    on = "" if rank is None else f" on rank {rank}"
    says = f"of a step{on}, by no finding; mostly {dict(LEDGER).get(most, most)}"
    lost = figure(loaded.tree, Unit.NS, "unclaimed[*]", how=How.SUM)
    whole = f"time.per_rank[{ranks.index(rank)}].wall_ns" if rank in ranks else "time.per_rank[*].wall_ns"
    step = figure(loaded.tree, Unit.NS, whole, how=How.LARGEST)
    return [_line("unclaimed", "unclaimed", lost, "of", step, says)]


def _untested(report: Report) -> list[Line]:
    """What the gaps are about; enter shows why, and what helps."""
    names = [gap.what.removesuffix(" not tested") for gap in grouped_gaps(report.gaps)]
    if not names:
        return []
    line = _line("untested", "not tested", Word(""), "", Word(""), ", ".join(names))
    return [Line(key=line.key, cells=line.cells, opens=Opens.GAP)]


def _line(key: str, name: str, value: Cell, beside: str, other: Cell, says: str) -> Line:
    """``beside``: what the other value is to this one."""
    words = (Word(said, Mark.MUTED) for said in (name, beside, says))
    return Line(key=key, cells=(next(words), value, next(words), other, next(words)))


def _largest(loaded: Loaded, leaf: str) -> Figure:
    return figure(loaded.tree, Unit.BYTES, leaf, how=How.LARGEST)
