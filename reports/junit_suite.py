"""JUnit XML, as Jenkins, GitLab and GitHub's test reporters read it: one suite, its properties, its cases.

``testsuites/testsuite(name, tests, failures, errors, skipped)/(properties, testcase*, system-out)``; a case
passed, or holds one of ``failure``, ``error``, ``skipped``.  Names and places are those of the schema of
Jenkins' xUnit plugin (junit-10.xsd), where only a suite has properties and only a suite counts what was
skipped.  No duration is written: a case is a judgement, and takes none.
XML 1.0 cannot hold control characters: all text is made printable here.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from zprof.model.formatting import printable, printable_lines, shorten

_LONGEST_LINE, _LONGEST_NAME = 4_000, 300


class State(StrEnum):
    """How a case ended, by the element that says so."""

    PASSED = ""
    FAILED = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One judgement.  ``message`` is its line, ``kind`` the type of a failure, ``text`` what follows."""

    group: str
    name: str
    state: State = State.PASSED
    message: str = ""
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All of a document."""

    name: str
    cases: Sequence[Case]
    properties: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def document(suite: Suite) -> str:
    """Return the XML with its declaration."""
    states = [case.state for case in suite.cases]
    counts = {
        "tests": len(states),
        "failures": states.count(State.FAILED),
        "errors": states.count(State.ERROR),
    }
    skipped = states.count(State.SKIPPED)
    root = ElementTree.Element("testsuites", _attributes(name="zprof", **counts))
    place = ElementTree.SubElement(root, "testsuite", _attributes(name=suite.name, **counts, skipped=skipped))
    _add_properties(place, suite.properties)
    for case in suite.cases:
        _add_case(place, case)
    if suite.text:
        ElementTree.SubElement(place, "system-out").text = _text(suite.text)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add_properties(place: ElementTree.Element, properties: Mapping[str, str]) -> None:
    if properties:
        held = ElementTree.SubElement(place, "properties")
        for name, value in properties.items():
            ElementTree.SubElement(held, "property", _attributes(name=name, value=value))


def _add_case(place: ElementTree.Element, case: Case) -> None:
    element = ElementTree.SubElement(place, "testcase", _attributes(classname=case.group, name=case.name))
    if case.state is State.PASSED:
        if case.text:
            ElementTree.SubElement(element, "system-out").text = _text(case.text)
        return
    said = _attributes(message=case.message) | (_attributes(type=case.kind) if case.kind else {})
    ElementTree.SubElement(element, case.state.value, said).text = _text(case.text) or None


def _attributes(**values: object) -> dict[str, str]:
    return {name: shorten(printable(value), _longest(name)) for name, value in values.items()}


def _longest(attribute: str) -> int:
    return _LONGEST_LINE if attribute in ("message", "value") else _LONGEST_NAME


def _text(text: str) -> str:
    return "\n".join(shorten(line, _LONGEST_LINE) for line in printable_lines(text))
