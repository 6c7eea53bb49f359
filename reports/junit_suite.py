"""Write JUnit XML for Jenkins, GitLab and GitHub test reporters: one suite with properties and cases.

``testsuites/testsuite(name, tests, failures, errors, skipped)/(properties, testcase*, system-out)``; a case
passed or contains one of ``failure``, ``error``, ``skipped``.  Element names and positions follow the schema
of the Jenkins xUnit plugin (junit-10.xsd), in which only a suite has properties and a count of skipped cases.
There are no durations, because a case is a judgement.  XML 1.0 does not allow control characters, so all
text is made printable here.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zprof.model.formatting import printable, printable_lines, shorten

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
