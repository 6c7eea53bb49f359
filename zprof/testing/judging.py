"""Holds the run of a test against its limits, and keeps its baseline where that is asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.checks.baseline import baseline_of
from zprof.checks.check import check
from zprof.checks.gates.figure import is_relative
from zprof.model.baseline import Baseline
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.model.errors import BadInput
from zprof.model.printable import printable
from zprof.testing.kept_baselines import UPDATE, keep, kept
from zprof.testing.recorded_run import RecordedRun

#: Beyond these a test is red: what could not be measured is no success.
_RED = (Outcome.FAILED, Outcome.UNKNOWN)
_AMBER = (Outcome.WARNED, Outcome.WITHIN_NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of it, each a line that is safe to print.

    ``first_run``: that there is no baseline yet, and how to write it.  ``properties``: the measured values by
    gate, for the JUnit file.  ``written``: the baseline, where it was kept.
    """

    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    first_run: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    written: Path | None = None


def judge(run: RecordedRun, limits: Sequence[Limit], file: Path, *, update: bool) -> Judged:
    """Hold ``run`` against ``limits``, those of the baseline against the one in ``file``.

    With ``update`` this run becomes the baseline, where it keeps all limits that need none.

    Raises:
        BadInput: the recording or the baseline cannot be used.
    """
    compared = any(is_relative(limit) for limit in limits)
    before = _before(run, file, update=update) if compared else None
    result = _checked(run, limits, before)
    failures = tuple(_failures(result))
    written = None
    if update and before is not None and not failures:
        keep(before, file)
        written = file
    first = compared and before is None
    return Judged(
        failures=failures,
        warnings=tuple(
            _line(gate) for gate in result.results if gate.outcome in _AMBER or gate.noise is not None
        ),
        notices=() if first else tuple(_notices(result, before)),
        first_run=_first_run(file, limits) if first else "",
        properties=tuple(_properties(result)),
        written=written,
    )


def _checked(run: RecordedRun, limits: Sequence[Limit], before: Baseline | None) -> Check:
    report, environment = run.report, run.manifest.environment
    try:
        return check(report, limits, before, environment=environment)
    except BadInput as error:
        raise BadInput(error.message, hint=f"pytest {UPDATE} makes this run its baseline") from None


def _before(run: RecordedRun, file: Path, *, update: bool) -> Baseline | None:
    return baseline_of(run.report, run.manifest.environment, file.stem) if update else kept(file)


def _first_run(file: Path, limits: Sequence[Limit]) -> str:
    gates = ", ".join(limit.gate for limit in limits if is_relative(limit))
    return printable(
        f"{gates}: nothing to compare with yet, pytest {UPDATE} writes {file.parent.name}/{file.name}"
    )


def _failures(result: Check) -> Iterator[str]:
    red = [_line(gate) for gate in result.results if gate.outcome in _RED]
    yield from red
    if not red and result.outcome in _RED:  # nothing could be judged: a notice says why
        yield printable(result.notices[-1] if result.notices else "nothing was judged")


def _notices(result: Check, before: Baseline | None) -> Iterator[str]:
    """Limits that need no baseline are not told that there is none."""
    yield from (printable(notice) for notice in result.notices if before is not None)
    yield from (_line(gate) for gate in result.results if gate.outcome is Outcome.SKIPPED)


def _line(gate: GateResult) -> str:
    remedy = gate.remedy if gate.outcome is not Outcome.FAILED else ""
    return printable(f"{gate.sentence}; {remedy}" if remedy else gate.sentence)


def _properties(result: Check) -> Iterator[tuple[str, str]]:
    """Of several results of a gate each has its subject in the name."""
    gates = [gate.limit.gate for gate in result.results]
    for gate in result.results:
        name = gate.limit.gate
        named = f"zprof.{name}" if gates.count(name) == 1 else f"zprof.{name}.{gate.subject}"
        value = "unknown" if gate.value is None else f"{gate.value:.15g}"
        yield printable(named), value
