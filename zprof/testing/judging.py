"""Check the run of a test against its limits, and save its baseline on request.

Baselines are ``zprof-baselines/<test>.json`` next to the test's file.  No two tests write the same file, so
parallel workers need no lock.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.checks.baseline import make_baseline, read_baseline, to_json
from zprof.checks.check import check
from zprof.checks.gates.reading import is_relative
from zprof.model.baseline import Baseline
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.model.errors import BadInput
from zprof.model.formatting import printable
from zprof.testing.run_fixture import RecordedRun

#: Outcomes that fail a test: what could not be measured is no success.
_FAILS = (Outcome.FAILED, Outcome.UNKNOWN)
_WARNS = (Outcome.WARNED, Outcome.WITHIN_NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitVerdict:
    """Result of a test's limits; each line is safe to print.

    ``first_run``: says that there is no baseline yet, and how to write it.  ``properties``: the measured
    values by gate, for the JUnit file.  ``written``: path of the baseline, if it was saved.
    """

    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    first_run: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    written: Path | None = None


def judge(run: RecordedRun, limits: Sequence[Limit], file: Path, *, update: bool) -> LimitVerdict:
    """Check ``run`` against ``limits``; relative limits use the baseline in ``file``.

    With ``update`` this run becomes the baseline, if it keeps all absolute limits.

    Raises:
        BadInput: the recording or the baseline cannot be used.
    """
    compared = any(is_relative(limit) for limit in limits)
    before = _choose_baseline(run, file, update=update) if compared else None
    result = _check_run(run, limits, before)
    failures = tuple(_failures(result))
    written = None
    if update and before is not None and not failures:
        save_baseline(before, file)
        written = file
    first = compared and before is None
    return LimitVerdict(
        failures=failures,
        warnings=tuple(
            _line(gate) for gate in result.results if gate.outcome in _WARNS or gate.noise is not None
        ),
        notices=() if first else tuple(_notices(result, before)),
        first_run=_first_run(file, limits) if first else "",
        properties=tuple(_properties(result)),
        written=written,
    )


def _check_run(run: RecordedRun, limits: Sequence[Limit], before: Baseline | None) -> Check:
    report, environment = run.report, run.manifest.environment
    try:
        return check(report, limits, before, environment=environment)
    except BadInput as error:
        raise BadInput(error.message, hint=f"pytest {UPDATE} makes this run its baseline") from None


def _choose_baseline(run: RecordedRun, file: Path, *, update: bool) -> Baseline | None:
    return make_baseline(run.report, run.manifest.environment, file.stem) if update else load_baseline(file)


def _first_run(file: Path, limits: Sequence[Limit]) -> str:
    gates = ", ".join(limit.gate for limit in limits if is_relative(limit))
    return printable(
        f"{gates}: nothing to compare with yet, pytest {UPDATE} writes {file.parent.name}/{file.name}"
    )


def _failures(result: Check) -> Iterator[str]:
    red = [_line(gate) for gate in result.results if gate.outcome in _FAILS]
    yield from red
    if not red and result.outcome in _FAILS:  # nothing could be judged: a notice says why
        yield printable(result.notices[-1] if result.notices else "nothing was judged")


def _notices(result: Check, before: Baseline | None) -> Iterator[str]:
    """Yield notices and skipped gates; without a baseline, the check's own notices are left out."""
    yield from (printable(notice) for notice in result.notices if before is not None)
    yield from (_line(gate) for gate in result.results if gate.outcome is Outcome.SKIPPED)


def _line(gate: GateResult) -> str:
    remedy = gate.remedy if gate.outcome is not Outcome.FAILED else ""
    return printable(f"{gate.sentence}; {remedy}" if remedy else gate.sentence)


def _properties(result: Check) -> Iterator[tuple[str, str]]:
    """Yield name and value per gate; several results of one gate have their subject in the name."""
    gates = [gate.limit.gate for gate in result.results]
    for gate in result.results:
        name = gate.limit.gate
        named = f"zprof.{name}" if gates.count(name) == 1 else f"zprof.{name}.{gate.subject}"
        value = "unknown" if gate.value is None else f"{gate.value:.15g}"
        yield printable(named), value


FOLDER = "zprof-baselines"
UPDATE = "--zprof-update-baseline"

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
#: With the test file's name and the digest, a file name stays below the 255 bytes of file systems.
_MAX_NAME_LENGTH = 100


def baseline_path(test_file: Path, names: Sequence[str]) -> Path:
    """Return the path of a test's baseline.

    ``names`` are those of its classes and its own: ``["TestB", "test_c[1]"]``.  Characters that a file name
    cannot have are replaced, and a digest of the whole name keeps it unique.
    """
    name = "::".join(names)
    plain = name.replace("::", ".")
    fit = _UNFIT.sub("-", plain).strip("-")[:_MAX_NAME_LENGTH]
    if fit != plain:
        fit = f"{fit}-{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:8]}"
    return test_file.parent / FOLDER / f"{test_file.stem}.{fit}.json"


def load_baseline(path: Path) -> Baseline | None:
    """Return the saved baseline, or None on the first run.

    Raises:
        BadInput: the file is not a baseline.
    """
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return read_baseline(path)
    except BadInput as error:
        raise BadInput(error.message, hint=f"pytest {UPDATE} writes it again") from None


def save_baseline(baseline: Baseline, path: Path) -> None:
    """Write a baseline atomically.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:_MAX_NAME_LENGTH]}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(to_json(baseline))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="is it writable?") from None
