"""Parse the limits of a test, check its run against the limits, and save its baseline on request.

    @pytest.mark.zprof_limit(peak="24 MiB", activations="+0%")

Baselines are ``zprof-baselines/<test>.json`` next to the test file.  Each test has its own file, so
parallel workers need no lock.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from zprof.base.errors import BadInput, suggest_names
from zprof.base.formatting import printable, shorten
from zprof.checks.baseline import make_baseline, read_baseline, to_json
from zprof.checks.check import check
from zprof.checks.limit_text import parse_limit
from zprof.checks.limits import GATES
from zprof.model.baseline import Baseline
from zprof.model.comparison import Check, GateResult, Limit, Outcome
from zprof.model.tenants import Tenant
from zprof.notebook.run import AnalysedRun

MARKER = "zprof_limit"
#: Limits in bytes, or in Ψ relative to the ZeRO formula of the stage.
_BYTES = "bytes"
_MAX_KEY_LENGTH = 40

#: Keywords of the marker, and their gates; gate names are also accepted.
KEYS: Mapping[str, str] = {
    "peak": "peak_memory",
    **{tenant.value: f"peak_memory.{tenant.value}" for tenant in Tenant},
    "untagged": "untagged_ratio",
    "exposed": "exposed_ratio",
    "overlap": "overlap_ratio",
    _BYTES: "collective_bytes",
    "count": "collective_count",
    "step": "step_time",
    "wait": "exposed_wait",
}


class Marker(Struct, frozen=True, kw_only=True):
    """Arguments of one marker."""

    positional: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=dict)


def parse_markers(markers: Iterable[Marker]) -> tuple[Limit, ...]:
    """Parse the limits of a test's markers, nearest first; the nearest marker of a gate applies.

    Disabled limits are omitted.

    Raises:
        BadInput: a keyword or a limit is unknown, a marker limits a gate twice, or there is no limit.
    """
    limits: dict[str, Limit | None] = {}
    for marker in reversed(list(markers)):
        if marker.positional:
            raise BadInput(f"{MARKER}: limits must be keyword arguments", hint=f'{MARKER}(peak="24 MiB")')
        marker_limits = _parse_marker(marker)
        limits = {gate: limit for gate, limit in limits.items() if gate not in marker_limits} | marker_limits
    if not limits:
        raise BadInput(f"{MARKER}: no limit given", hint=f'{MARKER}(peak="24 MiB")')
    return tuple(limit for limit in limits.values() if limit is not None)


def _parse_marker(marker: Marker) -> dict[str, Limit | None]:
    """Return the limits by gate; None for a disabled limit."""
    keys: dict[str, str] = {}
    limits: dict[str, Limit | None] = {}
    for key, value in marker.named.items():
        gate = _resolve_gate(key, value)
        if gate in keys:
            raise BadInput(f"{MARKER}: {keys[gate]} and {key} are the same limit", hint="keep one of them")
        keys[gate] = key
        limits[gate] = parse_limit(gate, value, origin=MARKER, place=f"{MARKER}, {_format_key(key)}")
    return limits


def _resolve_gate(key: str, value: object) -> str:
    if key == _BYTES:
        texts = value.values() if isinstance(value, Mapping) else (value,)
        if any(isinstance(text, str) and ("ψ" in text.lower() or "psi" in text.lower()) for text in texts):
            return "collective_bytes_law"  # a limit in units of Ψ (also ψ or psi)
    if key in KEYS:
        return KEYS[key]
    if key not in GATES:
        raise BadInput(f"{MARKER}: there is no limit {_format_key(key)}", hint=suggest_names(key, KEYS))
    return key


def _format_key(key: str) -> str:
    return shorten(printable(key), _MAX_KEY_LENGTH)


#: Outcomes that fail a test, including unmeasured values.
_FAILURES = (Outcome.FAILED, Outcome.UNKNOWN)
_WARNINGS = (Outcome.WARNED, Outcome.WITHIN_NOISE)
FOLDER = "zprof-baselines"
UPDATE = "--zprof-update-baseline"
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")
#: Maximum length that keeps file names, with test file name and digest, below the usual limit of 255 bytes.
_MAX_NAME_LENGTH = 100


class LimitVerdict(Struct, frozen=True, kw_only=True):
    """Result of a test's limits; each line is safe to print.

    ``first_run``: how to write a missing baseline; else empty.  ``properties``:
    the measured values by gate, for the JUnit file.  ``written``: path of the saved baseline, if any.
    """

    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    first_run: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    written: Path | None = None


def judge(run: AnalysedRun, limits: Sequence[Limit], file: Path, *, update: bool) -> LimitVerdict:
    """Check ``run`` against ``limits``; relative limits use the baseline in ``file``.

    With ``update``, this run becomes the baseline if it is within all absolute limits.

    Raises:
        BadInput: the recording or the baseline cannot be used.
    """
    needs_baseline = any(limit.is_relative for limit in limits)
    baseline = (
        (make_baseline(run.report, run.manifest.environment, file.stem) if update else load_baseline(file))
        if needs_baseline
        else None
    )
    result = _check_run(run, limits, baseline, file)
    failures = tuple(_iter_failures(result))
    written = None
    if update and baseline is not None and not failures:
        save_baseline(baseline, file)
        written = file
    first_run = ""
    if needs_baseline and baseline is None:
        gates = ", ".join(limit.gate for limit in limits if limit.is_relative)
        first_run = f"{gates}: no baseline yet; pytest {UPDATE} writes {file.parent.name}/{file.name}"
    return LimitVerdict(
        failures=failures,
        warnings=tuple(
            _format_gate(gate)
            for gate in result.results
            if gate.outcome in _WARNINGS or gate.noise is not None
        ),
        notices=() if first_run else tuple(_iter_notices(result, baseline)),
        first_run=printable(first_run),
        properties=tuple(_iter_properties(result)),
        written=written,
    )


def _check_run(run: AnalysedRun, limits: Sequence[Limit], baseline: Baseline | None, file: Path) -> Check:
    report, environment = run.report, run.manifest.environment
    try:
        return check(report, limits, baseline, environment=environment, baseline_file=file)
    except BadInput as error:
        raise BadInput(error.message, hint=f"pytest {UPDATE} makes this run its baseline") from None


def _iter_failures(result: Check) -> Iterator[str]:
    failed_gates = [_format_gate(gate) for gate in result.results if gate.outcome in _FAILURES]
    yield from failed_gates
    if (
        not failed_gates and result.outcome in _FAILURES
    ):  # no gate could be evaluated: a notice has the reason
        yield printable(result.notices[-1] if result.notices else "no limit could be evaluated")


def _iter_notices(result: Check, baseline: Baseline | None) -> Iterator[str]:
    """Yield notices and skipped gates; without a baseline, only skipped gates."""
    yield from (printable(notice) for notice in result.notices if baseline is not None)
    yield from (_format_gate(gate) for gate in result.results if gate.outcome is Outcome.SKIPPED)


def _format_gate(gate: GateResult) -> str:
    remedy = gate.remedy if gate.outcome is not Outcome.FAILED else ""
    return printable(f"{gate.sentence}; {remedy}" if remedy else gate.sentence)


def _iter_properties(result: Check) -> Iterator[tuple[str, str]]:
    """Yield (name, value) per gate; with several results, the name includes the subject."""
    gates = [gate.limit.gate for gate in result.results]
    for gate in result.results:
        name = gate.limit.gate
        property_name = f"zprof.{name}" if gates.count(name) == 1 else f"zprof.{name}.{gate.subject}"
        value = "unknown" if gate.value is None else f"{gate.value:.15g}"
        yield printable(property_name), value


def baseline_path(test_file: Path, names: Sequence[str]) -> Path:
    """Return the path of a test's baseline.

    ``names``: names of its classes and of the test: ``["TestB", "test_c[1]"]``.  Characters that are
    invalid in file names are replaced, and a digest of the full name keeps it unique.
    """
    name = "::".join(names)
    dotted = name.replace("::", ".")
    file_name = _INVALID_CHARACTERS.sub("-", dotted).strip("-")[:_MAX_NAME_LENGTH]
    if file_name != dotted:
        file_name = f"{file_name}-{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:8]}"
    return test_file.parent / FOLDER / f"{test_file.stem}.{file_name}.json"


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
        raise BadInput(error.message, hint=f"pytest {UPDATE} replaces it") from None


def save_baseline(baseline: Baseline, path: Path) -> None:
    """Write a baseline atomically.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:_MAX_NAME_LENGTH]}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(to_json(baseline))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})", hint="is it writable?") from None
