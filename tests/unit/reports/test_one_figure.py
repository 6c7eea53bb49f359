"""One leaf, the same figure in every output: text, Markdown, HTML, JUnit, SARIF and the terminal UI.

The decisive leaves of a report get values that nothing else has; then each output must show each of them.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from statistics import fmean

import pytest
from msgspec.structs import replace

from tests.support import junit_schema, sarif_schema
from tests.support.report_pages import seen
from tests.support.reports import memory_only, slower, straggler, trace
from zprof.base.formatting import format_bytes, format_ms, format_ns
from zprof.model.findings import Evidence
from zprof.model.report import Report
from zprof.model.time import LEDGER_TERMS
from zprof.reports.formats import by_name

MIB, MS = 1 << 20, 1_000_000
SITUATIONS = {make.__name__: make for make in (slower, straggler, memory_only, trace)}
#: Path of a leaf and its possible spellings.
Leaf = tuple[str, tuple[str, ...]]


@cache
def report_of(name: str) -> Report:
    """The report with a value of its own in each decisive leaf."""
    report = SITUATIONS[name]()
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
            evidence=(
                *entry.evidence,
                Evidence(key="over_the_median", what="over the median", value=next(factors), unit="count"),
            ),
        )
        for entry in report.findings
    )
    comparison = report.comparison
    if comparison is not None and comparison.step_time is not None:
        step = replace(comparison.step_time, b_ns=round(fmean(rank.wall_ns for rank in ranks)))
        comparison = replace(comparison, step_time=step)
    time = replace(report.time, per_rank=ranks, collectives=collectives)
    memory_of_all = replace(report.memory, per_rank=memory)
    return replace(report, time=time, memory=memory_of_all, findings=findings, comparison=comparison)


def leaves(report: Report) -> Iterator[Leaf]:
    """The decisive leaves of a report."""
    for term in ("wall_ns", *LEDGER_TERMS) if report.time.per_rank else ():
        mean = round(fmean(getattr(rank, term) for rank in report.time.per_rank))
        yield f"time.{term}", (format_ms(mean), format_ns(mean))
    for at, rank in enumerate(report.memory.per_rank):
        for tenant, size in {
            **rank.tenants,
            "untagged": rank.untagged_bytes,
            "peak": rank.peak_bytes,
        }.items():
            yield f"memory[{at}].{tenant}", (format_bytes(size),)
    for at, entry in enumerate(report.time.collectives):
        yield f"collectives[{at}].exposed", (format_ms(entry.exposed_ns), format_ns(entry.exposed_ns))
        yield f"collectives[{at}].bytes", (format_bytes(entry.bytes),)
    for at, finding in enumerate(report.findings):
        yield from ((f"findings[{at}].saving_ns", (format_ns(saving),)) for saving in finding.saving_ns)
        yield f"findings[{at}].evidence", (f"{finding.evidence[-1].value:.4g}",)


def missing(document: str, wanted: list[Leaf]) -> list[Leaf]:
    """Leaves of which no spelling stands in the document as a number of its own."""
    said = " ".join(document.split())
    return [
        leaf
        for leaf in wanted
        if not any(re.search(rf"(?<!\d)(?<!\d\.){re.escape(text)}(?![\d.]*\d)", said) for text in leaf[1])
    ]


each_situation = pytest.mark.parametrize("name", SITUATIONS)


@each_situation
@pytest.mark.parametrize("output", ["text", "md", "html"])
def test_a_page_shows_every_decisive_leaf(output: str, name: str) -> None:
    wanted = list(leaves(report_of(name)))
    assert len({written for _, written in wanted}) == len(wanted), "no two are written alike"
    assert not missing(seen(output, by_name(output).render(report_of(name))), wanted)
    assert missing("1" + wanted[0][1][0], wanted[:1]), "a figure is not found within another"


@each_situation
def test_documents_for_ci_carry_the_findings(name: str) -> None:
    report = report_of(name)
    wanted = [leaf for leaf in leaves(report) if leaf[0].startswith("findings")]
    document = by_name("junit").render(report)
    assert not missing("\n".join(junit_schema.parsed(document).itertext()), wanted)
    facts = junit_schema.properties(document)
    if report.time.per_rank:
        assert facts["step_time"] == format_ns(fmean(rank.wall_ns for rank in report.time.per_rank))
    if report.memory.per_rank:
        peak = max(rank.peak_bytes for rank in report.memory.per_rank)
        assert facts["peak_memory"] == format_bytes(peak)
    results = sarif_schema.parsed(by_name("sarif").render(report))["results"]
    assert not missing("\n".join(result["message"]["text"] for result in results), wanted)
    tree = json.loads(by_name("json").render(report))
    for result, finding in zip(results, tree["findings"], strict=True):
        for key in ("saving_ns", "saving_bytes", "evidence", "confidence", "severity", "cause"):
            assert result["properties"][key] == finding[key]
