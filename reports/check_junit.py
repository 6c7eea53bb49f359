"""A check as JUnit XML: a case a gate, with its numbers as properties of the suite.

A property ``peak_memory.value`` is the figure as every face shows it, ``peak_memory.value_bytes`` the number.
"""

from collections.abc import Iterator

from zprof.model.check import Check, GateResult, Outcome
from zprof.model.report import Report
from zprof.reports.junit_suite import Case, State, Suite, document
from zprof.reports.page import UNKNOWN
from zprof.reports.presenters.check_words import (
    change,
    details,
    figure,
    interval,
    limit_text,
    outcome_sentence,
)

_STATES = {
    Outcome.PASSED: State.PASSED,
    Outcome.WARNED: State.PASSED,
    Outcome.WITHIN_NOISE: State.PASSED,
    Outcome.FAILED: State.FAILED,
    Outcome.SKIPPED: State.SKIPPED,
    Outcome.UNKNOWN: State.ERROR,
}
_FACTS = ("zprof_version", "run", "baseline", "outcome")


def render(check: Check, report: Report) -> str:
    """The document; a warning is a case that passed and says why it warned."""
    properties = {name: str(value) for name in _FACTS if (value := getattr(check, name)) is not None}
    for result in check.results:
        properties |= _numbers(result)
    said = [outcome_sentence(check), *check.notices]
    return document(
        Suite(
            name=f"zprof check {check.run}",
            cases=[_case(result) for result in check.results],
            properties=properties,
            text="\n".join(" ".join(line.split()) for line in said),
        )
    )


def _case(result: GateResult) -> Case:
    text = "\n".join(details(result))
    return Case(
        group="zprof.check",
        name=result.limit.gate,
        state=_STATES[result.outcome],
        message=result.sentence,
        kind=f"zprof.{result.limit.gate}",
        text="\n".join([text, f"limit: {limit_text(result.limit)}"]),
    )


def _numbers(result: GateResult) -> dict[str, str]:
    return {f"{result.limit.gate}.{name}": value for name, value in _named(result)}


def _named(result: GateResult) -> Iterator[tuple[str, str]]:
    unit = result.limit.unit
    for name in ("value", "baseline", "allowed"):
        number = getattr(result, name)
        if number is not None:
            yield name, figure(number, unit)
            yield f"{name}_{unit}", f"{number:.15g}"
    if (changed := change(result)) != UNKNOWN:
        yield "change", changed
    if said := interval(result):
        yield "interval", said
    yield "limit", limit_text(result.limit)
