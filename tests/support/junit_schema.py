"""JUnit XML held against the rules of Jenkins' junit-10.xsd, in words of our own, and its counts."""

import xml.etree.ElementTree as ElementTree

_NUMBERS = {"tests", "failures", "errors"}
#: Children, attributes that must be there, attributes that may be there.
RULES: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time"} | _NUMBERS),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name"} | _NUMBERS,
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": (
        {"skipped", "error", "failure", "system-out", "system-err"},
        {"name"},
        {"time", "classname", "group"},
    ),
    "skipped": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "failure": (set(), set(), {"type", "message"}),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}


def parsed(document: str) -> ElementTree.Element:
    """The root of a document that keeps all rules; its counts are those of its cases."""
    root = ElementTree.fromstring(document.encode("utf-8"))
    assert root.tag == "testsuites"
    for element in root.iter():
        children, needed, allowed = RULES[element.tag]
        assert {child.tag for child in element} <= children, element.tag
        assert needed <= set(element.attrib), (element.tag, element.attrib)
        assert set(element.attrib) <= needed | allowed, (element.tag, element.attrib)
        assert len(element) == 0 or not (element.text or "").strip(), f"{element.tag}: text beside elements"
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        assert all(len(case) <= 1 for case in cases), "a case ends in one way"
        assert int(suite.attrib["tests"]) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == sum(case.find(tag) is not None for case in cases), name
    return root


def states(document: str) -> dict[str, str]:
    """Each case with how it ended."""
    cases = parsed(document).iter("testcase")
    return {
        case.attrib["name"]: next((child.tag for child in case if child.tag != "system-out"), "passed")
        for case in cases
    }


def properties(document: str) -> dict[str, str]:
    """The properties of the suite."""
    return {entry.attrib["name"]: entry.attrib["value"] for entry in parsed(document).iter("property")}
