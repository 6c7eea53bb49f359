"""One leaf, the same figure in every face: text, Markdown, HTML, JSON, JUnit, SARIF and the terminal UI.

The decisive leaves of a report get values that nothing else has; then each face must show each of them, as
``zprof.model.formatting`` writes it.  A face that showed another leaf, or rounded by itself, would not.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from tests.support import junit_schema, sarif_schema
from tests.support.report_pages import seen
from tests.support.reports import memory_only, slower, straggler, trace
from zprof.model.findings import Evidence
from zprof.model.formatting import format_bytes, format_ms, format_ns
from zprof.model.report import Report
from zprof.model.time import LEDGER_TERMS
from zprof.reports.formats import by_name
from zprof.tui.figures import Figure
from zprof.tui.presenters.communication import build_collectives_table
from zprof.tui.presenters.memory import build_stacks
from zprof.tui.presenters.overview import build_findings_table, build_ledger_table
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.tables import Table

MIB, MS = 1 << 20, 1_000_000
SITUATIONS = (slower, straggler, memory_only, trace)


@dataclass(frozen=True)
class Leaf:
    """A decisive number: the path of its JSON leaves, whose mean it is, and how the units write it."""

    path: str
    value: float
    written: tuple[str, ...]


def marked(report: Report) -> Report:
    """The report with a value of its own in each decisive leaf: no two are written alike."""
    times = (round((107.3 + 1.3 * at) * MS) for at in itertools.count())
    sizes = (round((101.3 + 1.7 * at) * MIB) for at in itertools.count())
    factors = (round(1.38 + 0.011 * at, 3) for at in itertools.count())
    ranks = tuple(
        replace(rank, **{term: next(times) for term in ("wall_ns", *LEDGER_TERMS)})
        for rank in report.time.per_rank
    )
    collectives = tuple(
        replace(entry, exposed_ns=next(times), bytes=next(sizes)) for entry in report.time.collectives
    )
    memory = tuple(
        replace(
            rank,
            tenants={tenant: next(sizes) for tenant in rank.tenants},
            untagged_bytes=next(sizes),
            peak_bytes=next(sizes) + (200 << 20),
        )
        for rank in report.memory.per_rank
    )
    findings = tuple(
        replace(
            entry,
            saving_ns=(next(times), next(times)),
            saving_bytes=(next(sizes), next(sizes)) if entry.saving_bytes else None,
            evidence=(*entry.evidence, Evidence(what="over the median", value=next(factors), unit="count")),
        )
        for entry in report.findings
    )
    return replace(
        report,
        time=replace(report.time, per_rank=ranks, collectives=collectives),
        memory=replace(report.memory, per_rank=memory),
        findings=findings,
        comparison=_with_step(report, round(fmean(rank.wall_ns for rank in ranks))) if ranks else None,
    )


def _with_step(report: Report, step_ns: int) -> Any:
    """The comparison has the step time too: as in any report, the mean of the ranks."""
    found = report.comparison
    if found is None or found.step_time is None:
        return found
    return replace(found, step_time=replace(found.step_time, b_ns=step_ns))


def leaves(tree: dict[str, Any]) -> Iterator[Leaf]:
    """The decisive leaves of a report's JSON."""
    ranks = tree["time"]["per_rank"]
    for term in ("wall_ns", *LEDGER_TERMS) if ranks else ():
        mean = round(fmean(rank[term] for rank in ranks))
        yield Leaf(f"time.per_rank[*].{term}", mean, (format_ms(mean), format_ns(mean)))
    for at, rank in enumerate(tree["memory"]["per_rank"]):
        for tenant, size in rank["tenants"].items():
            yield _size(f"memory.per_rank[{at}].tenants.{tenant}", size)
        yield _size(f"memory.per_rank[{at}].untagged_bytes", rank["untagged_bytes"])
        yield _size(f"memory.per_rank[{at}].peak_bytes", rank["peak_bytes"])
    for at, entry in enumerate(tree["time"]["collectives"]):
        exposed = entry["exposed_ns"]
        yield Leaf(f"time.collectives[{at}].exposed_ns", exposed, (format_ms(exposed), format_ns(exposed)))
        yield _size(f"time.collectives[{at}].bytes", entry["bytes"])
    for at, finding in enumerate(tree["findings"]):
        for saving in finding["saving_ns"]:
            yield Leaf(f"findings[{at}].saving_ns", saving, (format_ns(saving),))
        for saving in finding["saving_bytes"] or ():
            yield _size(f"findings[{at}].saving_bytes", saving)
        factor = finding["evidence"][-1]["value"]
        yield Leaf(f"findings[{at}].evidence[-1].value", factor, (f"{factor:.4g}",))


def _size(path: str, size: int) -> Leaf:
    return Leaf(path, size, (format_bytes(size),))


@cache
def report_of(at: int) -> Report:
    return marked(SITUATIONS[at]())


def decisive(at: int, *stems: str) -> list[Leaf]:
    """Those whose path begins so; all without any."""
    found = leaves(json.loads(by_name("json").render(report_of(at))))
    return [leaf for leaf in found if leaf.path.startswith(stems or ("",))]


def missing(document: str, wanted: list[Leaf]) -> list[str]:
    """Leaves of which no spelling stands in the document as a number of its own."""
    said = " ".join(document.split())
    return [
        f"{leaf.path} = {leaf.written}"
        for leaf in wanted
        if not any(
            re.search(rf"(?<!\d)(?<!\d\.){re.escape(text)}(?![\d.]*\d)", said) for text in leaf.written
        )
    ]


OUTPUTS = ("text", "md", "html")
each_situation = pytest.mark.parametrize("at", range(len(SITUATIONS)), ids=[s.__name__ for s in SITUATIONS])


@each_situation
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_page_shows_every_decisive_leaf(name: str, at: int) -> None:
    wanted = decisive(at)
    assert len({leaf.written for leaf in wanted}) == len(wanted), "no two are written alike"
    assert not missing(seen(name, by_name(name).render(report_of(at))), wanted)


@each_situation
def test_the_terminal_shows_every_decisive_leaf(at: int) -> None:
    report = report_of(at)
    loaded = LoadedRun(run=None, report=report, analysis=None)  # type: ignore[arg-type]
    tables: list[Table] = [
        build_ledger_table(loaded),
        build_collectives_table(loaded),
        build_findings_table(loaded),
    ]
    shown = [figure for table in tables for figure in figures(table)]
    for rank in report.memory.per_rank:
        drawn = build_stacks(loaded, Selection(rank=rank.rank))
        assert drawn is not None
        shown += [*figures(drawn.legend), *(bar.peak for bar in drawn.bars)]
    wanted = [leaf for leaf in decisive(at) if ".evidence" not in leaf.path]  # those have a page of their own
    assert not missing("\n".join(figure.text for figure in shown), wanted)


def figures(table: Table) -> list[Figure]:
    """All of a table, both ends of a range."""
    cells = [cell for line in table.lines for cell in line.cells if isinstance(cell, Figure)]
    return [figure for cell in cells for figure in cell.in_report()]


@each_situation
def test_junit_carries_what_it_shows(at: int) -> None:
    document = by_name("junit").render(report_of(at))
    text = "\n".join(junit_schema.parsed(document).itertext())
    assert not missing(text, decisive(at, "findings"))
    shown = junit_schema.properties(document)
    tree = json.loads(by_name("json").render(report_of(at)))
    if tree["time"]["per_rank"]:
        assert shown["step_time"] == format_ns(fmean(rank["wall_ns"] for rank in tree["time"]["per_rank"]))
    if tree["memory"]["per_rank"]:
        assert shown["peak_memory"] == format_bytes(max(r["peak_bytes"] for r in tree["memory"]["per_rank"]))


@each_situation
def test_sarif_carries_what_it_shows(at: int) -> None:
    run = sarif_schema.parsed(by_name("sarif").render(report_of(at)))
    tree = json.loads(by_name("json").render(report_of(at)))
    messages = "\n".join(result["message"]["text"] for result in run["results"])
    assert not missing(messages, decisive(at, "findings"))
    for result, finding in zip(run["results"], tree["findings"], strict=True):
        for name in ("saving_ns", "saving_bytes", "evidence", "confidence", "severity", "cause"):
            assert result["properties"][name] == finding[name]


def test_a_figure_is_not_found_within_another() -> None:
    leaf = Leaf("x", 1.0, ("1.5 ms",))
    for document in ("11.5 ms", "0.1.5 ms", "1.5 MiB"):
        assert missing(document, [leaf])
    assert not missing("of 1.5 ms.", [leaf])
    assert not missing("0.9..1.5 ms", [leaf]), "the end of a range"
    assert missing("2.0", [Leaf("x", 1.0, ("2",))])
