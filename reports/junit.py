"""Render a report as JUnit XML: the verdict and each finding are cases, gaps are skipped cases.

A finding fails if its severity is high or medium and its confidence is not low; else it passes with the
evidence in its output. The verdict fails for a run that is slower or at risk, so a regression without a
finding does not pass.

``testsuites/testsuite(name, tests, failures, errors, skipped)/(properties, testcase*, system-out)``; a case
passed or contains one of ``failure``, ``error``, ``skipped``.  Element names and positions follow the schema
of the Jenkins xUnit plugin (junit-10.xsd), in which only a suite has properties and a count of skipped cases.
There are no durations, because a case is a judgement.  XML 1.0 does not allow control characters, so all
text is made printable here.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zprof.base.formatting import format_ns, format_percent, printable, printable_lines, shorten
from zprof.model.findings import read_index
from zprof.model.quantities import BOUND_WORDS
from zprof.model.report import Report, VerdictStatus
from zprof.reports.pages.findings import (
    GapGroup,
    is_significant,
    list_finding_lines,
    merge_gaps,
)
from zprof.reports.pages.ledger import exposure, step_ns
from zprof.reports.pages.tenants import format_largest_peak

_MAX_LINE, _MAX_NAME = 4_000, 300


class State(StrEnum):
    """Outcome of a case; the value is the name of its XML element."""

    PASSED = ""
    FAILED = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


class Case(Struct, frozen=True, kw_only=True):
    """A test case.  ``message``: summary line; ``kind``: type of a failure; ``text``: full output."""

    group: str
    name: str
    state: State = State.PASSED
    message: str = ""
    kind: str = ""
    text: str = ""


class Suite(Struct, frozen=True, kw_only=True):
    """A test suite with its properties, cases and output."""

    name: str
    cases: Sequence[Case]
    properties: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def document(suite: Suite) -> str:
    """Return the XML document with its declaration."""
    states = [case.state for case in suite.cases]
    counts = {
        "tests": len(states),
        "failures": states.count(State.FAILED),
        "errors": states.count(State.ERROR),
    }
    skipped = states.count(State.SKIPPED)
    root = ElementTree.Element("testsuites", _make_attributes(name="zprof", **counts))
    suite_element = ElementTree.SubElement(
        root, "testsuite", _make_attributes(name=suite.name, **counts, skipped=skipped)
    )
    if suite.properties:
        properties_element = ElementTree.SubElement(suite_element, "properties")
        for name, value in suite.properties.items():
            ElementTree.SubElement(properties_element, "property", _make_attributes(name=name, value=value))
    for case in suite.cases:
        _add_case(suite_element, case)
    if suite.text:
        ElementTree.SubElement(suite_element, "system-out").text = _make_printable(suite.text)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add_case(suite_element: ElementTree.Element, case: Case) -> None:
    element = ElementTree.SubElement(
        suite_element, "testcase", _make_attributes(classname=case.group, name=case.name)
    )
    if case.state is State.PASSED:
        if case.text:
            ElementTree.SubElement(element, "system-out").text = _make_printable(case.text)
        return
    attributes = _make_attributes(message=case.message) | (
        _make_attributes(type=case.kind) if case.kind else {}
    )
    ElementTree.SubElement(element, case.state.value, attributes).text = _make_printable(case.text) or None


def _make_attributes(**values: object) -> dict[str, str]:
    return {
        name: shorten(printable(value), _MAX_LINE if name in ("message", "value") else _MAX_NAME)
        for name, value in values.items()
    }


def _make_printable(text: str) -> str:
    return "\n".join(shorten(line, _MAX_LINE) for line in printable_lines(text))


_VERDICTS = {
    VerdictStatus.OK: State.PASSED,
    VerdictStatus.SLOWER: State.FAILED,
    VerdictStatus.RISK: State.FAILED,
    VerdictStatus.INCONCLUSIVE: State.ERROR,
}


def render(report: Report) -> str:
    """Return the JUnit XML."""
    message, status = report.verdict.sentence, report.verdict.status
    cases = [
        Case(
            group="zprof.report",
            name="verdict",
            state=_VERDICTS[status],
            message=message,
            kind=status.value,
            text=message,
        ),
        *(
            Case(
                group="zprof.findings",
                name=f"{finding.id} {finding.cause}",
                state=State.FAILED if is_significant(finding) else State.PASSED,
                message=finding.sentence,
                kind=f"{finding.severity.value} severity, {finding.confidence.value} confidence",
                text="\n".join(list_finding_lines(finding)),
            )
            for finding in report.findings
        ),
    ]
    cases += [case for group in merge_gaps(report.gaps) for case in _make_gap_cases(group)]
    return document(
        Suite(
            name=f"zprof report {report.run.name}",
            cases=cases,
            properties=dict(_list_properties(report)),
            text=report.verdict.sentence,
        )
    )


def _make_gap_cases(group: GapGroup) -> list[Case]:
    message = f"{group.reason} → {group.remedy}" if group.remedy else group.reason
    ids = {entry.name: f"{entry.id} " for entry in read_index()}
    names = [f"{ids.get(cause, '')}{cause}" for cause in group.causes]
    if names:
        return [_make_skipped_case("zprof.findings", name, message) for name in names]
    return [_make_skipped_case("zprof.measured", f"{group.what}{group.where}", message)]


def _make_skipped_case(group: str, name: str, message: str) -> Case:
    return Case(group=group, name=name.strip(), state=State.SKIPPED, message=message)


def _list_properties(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the headline figures of the report as properties."""
    yield "zprof_version", report.zprof_version
    yield "run", report.run.name
    yield "verdict", report.verdict.status.value
    yield "modelled", "; ".join(report.run.modelled) or "nothing"
    if report.time.per_rank:
        yield "step_time", format_ns(step_ns(report.time.per_rank))
        # A share of the time in collectives; the gate ``exposed_ratio`` is a share of the step.
        exposed, share = exposure(report.time.per_rank), "no collective ran"
        if exposed.ratio is not None:
            share = f"{BOUND_WORDS[exposed.bound]}{format_percent(exposed.ratio)}"
        yield "exposed_share_of_collectives", share
    if report.memory.per_rank:
        yield "peak_memory", format_largest_peak(report.memory.per_rank)
    if report.comparison is not None:
        yield "baseline", report.comparison.baseline
