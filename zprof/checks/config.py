"""Find the limits that apply: defaults < pyproject.toml < zprof.toml < the command line.

Each file is looked up from a folder towards the root of the repository (the folder with ``.git``). The
first one that configures zprof is used. Each layer overrides lower-priority limits gate by gate, or disables
a gate.
Peak memory may be split by tenant, in any TOML syntax:

    [tool.zprof.check]                         [tool.zprof.check.peak_memory]
    peak_memory = "+2%"                        total = "+2%"
    "peak_memory.activations" = "+0%"          activations = "+0%"
    step_time = {max = "+3%", confidence = 0.95}
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, suggest_names, suggest_path
from zprof.checks.limit_text import LIMIT_KEYS, parse_limit, quote_input
from zprof.checks.limits import GATES, MEMORY_PARTS, PEAK_MEMORY
from zprof.model.comparison import DEFAULT, Check, Limit, Outcome

PYPROJECT = "pyproject.toml"
ZPROF_TOML = "zprof.toml"
_MAX_BYTES = 1 << 20
_MAX_FOLDERS = 64
_TABLE_NAME = "check"


class ConfigSection(Struct, frozen=True, kw_only=True):
    """The limits table of one file; ``name`` is its header, such as ``[tool.zprof.check]``."""

    path: Path
    name: str
    table: Mapping[str, object]


def find_sections(folder: Path) -> tuple[ConfigSection, ...]:
    """Return the tables of the nearest pyproject.toml and the nearest zprof.toml, lowest priority first.

    Raises:
        BadInput: A file is invalid.
    """
    found = (_find_nearest(folder, PYPROJECT), _find_nearest(folder, ZPROF_TOML))
    return tuple(section for section in found if section is not None)


def read_section(path: Path) -> ConfigSection | None:
    """Return the limits table in ``path``, or None if the file does not configure zprof.

    Raises:
        BadInput: The file does not exist or is not TOML, or the value is not a table.
    """
    document = _read_document(path)
    if path.name != PYPROJECT:
        return _check_section(path, document, "")
    tool = _get_table(path, document, "tool", "")
    if "zprof" not in tool:
        return None
    return _check_section(path, _get_table(path, tool, "zprof", "tool."), "tool.zprof.")


def _find_nearest(folder: Path, name: str) -> ConfigSection | None:
    """Search ``folder`` and its parents, up to the root of the repository."""
    start = folder.resolve()
    for parent in (start, *start.parents)[:_MAX_FOLDERS]:
        path = parent / name
        section = read_section(path) if _exists(path, Path.is_file) else None
        if section is not None or _exists(parent / ".git", Path.exists):
            return section
    return None


def _exists(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # skip folders that cannot be read
        return False


def _check_section(path: Path, parent: Mapping[str, Any], prefix: str) -> ConfigSection:
    for key in parent:
        if key != _TABLE_NAME:
            table_name = f"[{prefix[:-1]}]" if prefix else "the top level"
            raise BadInput(
                f"{path}: unknown key {quote_input(key)} in {table_name}",
                hint=f"put limits in [{prefix}{_TABLE_NAME}]",
            )
    table = _get_table(path, parent, _TABLE_NAME, prefix)
    return ConfigSection(path=path, name=f"[{prefix}{_TABLE_NAME}]", table=table)


def _get_table(path: Path, parent: Mapping[str, Any], key: str, prefix: str) -> Mapping[str, Any]:
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise BadInput(f"{path}: {prefix}{key} must be a table", hint=f"write [{prefix}{key}]")
    return table


def _read_document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply", hint="fix the file") from None
    except ValueError as error:  # not TOML, or a number with too many digits
        reason = quote_input(error).strip('"')
        raise BadInput(f"{path}: invalid TOML: {reason}", hint="fix the syntax error") from None


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            hint = suggest_path(path) or "pass the path of a TOML file with limits"
            raise BadInput(f"{path}: no such file", hint=hint)
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="choose another file") from None
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{path}: larger than 1 MiB", hint="this does not look like a limits file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not valid UTF-8", hint="save it as UTF-8") from None


_TOTAL = "total"


class StatedLimit(Struct, frozen=True, kw_only=True):
    """A limit as the user wrote it; ``origin`` is displayed next to it, ``location`` in error messages."""

    gate: str
    value: object
    origin: str
    location: str


def resolve_limits(
    folder: Path, *, config: Path | None = None, flags: Iterable[StatedLimit] = ()
) -> tuple[Limit, ...]:
    """Return the limits that apply in ``folder``, in the order of the gates.

    ``config`` replaces the files found from ``folder``. ``flags`` override all files.

    Raises:
        BadInput: A file or a flag contains an invalid limit; the message names it.
    """
    limits: dict[str, Limit | None] = {limit.gate: limit for limit in default_limits()}
    sections = (read_section(config),) if config is not None else find_sections(folder)
    for section in sections:
        if section is None:
            raise BadInput(f"{config}: has no [tool.zprof.check]", hint="add it, or remove --config")
        limits |= _parse_limits(list_stated_limits(section, folder))
    limits |= _parse_limits(flags)
    ordered_limits = (limits.get(name) for name in GATES)
    return tuple(limit for limit in ordered_limits if limit is not None)


def list_stated_limits(section: ConfigSection, folder: Path) -> Iterator[StatedLimit]:
    """Yield the limits of a file, split by tenant; ``origin`` is its path relative to ``folder`` or its name.

    Raises:
        BadInput: A gate has two limits.
    """
    seen: set[str] = set()
    path = folder / section.path
    origin = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    for key, value in section.table.items():
        is_plain = key.isidentifier() and key.isascii() and len(key) < 48
        location = f"{section.path}, {section.name} {key if is_plain else quote_input(key)}"
        for gate, part, part_location in _split_parts(key, value, location):
            if gate in seen:
                raise BadInput(f"{part_location}: {gate} has two limits", hint="remove one")
            seen.add(gate)
            yield StatedLimit(gate=gate, value=part, origin=origin, location=part_location)


def _parse_limits(stated: Iterable[StatedLimit]) -> dict[str, Limit | None]:
    return {
        entry.gate: parse_limit(entry.gate, entry.value, origin=entry.origin, place=entry.location)
        for entry in stated
    }


def _split_parts(key: str, value: object, location: str) -> Iterator[tuple[str, object, str]]:
    """Yield gate, limit and location; a table becomes one gate per tenant, anything else one gate."""
    if key != PEAK_MEMORY or not isinstance(value, Mapping):
        yield key, value, location
        return
    total = {name: part for name, part in value.items() if name in LIMIT_KEYS}
    if total or not value:
        yield PEAK_MEMORY, total, location
    for name, part in value.items():
        if name in LIMIT_KEYS:
            continue
        if name != _TOTAL and name not in MEMORY_PARTS:
            raise BadInput(
                f"{location}: unknown tenant {quote_input(name)}",
                hint=suggest_names(name, (_TOTAL, *MEMORY_PARTS, *LIMIT_KEYS)),
            )
        yield PEAK_MEMORY if name == _TOTAL else f"{PEAK_MEMORY}.{name}", part, f"{location}.{name}"


#: As they would be written in ``[tool.zprof.check]``.
DEFAULTS: Mapping[str, object] = {
    "peak_memory": "+2%",
    "exposed_ratio": {"max": "+5pt", "confidence": 0.95},
    "overlap_ratio": {"min": "-5pt", "confidence": 0.95},
    "collective_bytes": "+0%",
    "collective_count": "+0%",
    "step_time": {"max": "+5%", "confidence": 0.95},
    "exposed_wait": "+10%",
}


def default_limits() -> tuple[Limit, ...]:
    """Return the limits of :data:`DEFAULTS`, each with origin ``default``."""
    limits = (parse_limit(gate, value, origin=DEFAULT) for gate, value in DEFAULTS.items())
    return tuple(limit for limit in limits if limit is not None)


#: Replacements on CPU ranks. Shares of the step depend little on the machine's load: recordings of one
#: program at one to two times its pace differed by up to 14 points.
CPU_DEFAULTS: Mapping[str, object] = {
    "exposed_ratio": {"max": "+20pt", "confidence": 0.95},
    "overlap_ratio": {"min": "-20pt", "confidence": 0.95},
}


def adapt_to_device(limits: Iterable[Limit], device: str) -> tuple[Limit, ...]:
    """Return ``limits`` as they apply on ``device`` (``cpu`` or a GPU).

    On CPU ranks default limits on shares of the step are wider, and those on times only warn: the load of the
    machine affects them as much as the program does. Limits set by the user and limits on bytes and counts
    are the same on any device.
    """
    adapted = []
    for limit in limits:
        gate = GATES.get(limit.gate)
        if device != "cpu" or limit.origin != DEFAULT or gate is None or not gate.is_timed:
            adapted.append(limit)
        elif limit.gate in CPU_DEFAULTS:
            adapted.append(parse_limit(limit.gate, CPU_DEFAULTS[limit.gate], origin=DEFAULT) or limit)
        else:
            adapted.append(replace(limit, warns=True))
    return tuple(adapted)


def list_downgraded_gates(limits: Iterable[Limit], result: Check) -> tuple[str, ...]:
    """Return the gates that would have failed in ``result`` without :func:`adapt_to_device`."""
    failing_gates = {limit.gate for limit in limits if not limit.warns}
    return tuple(
        gate_result.limit.gate
        for gate_result in result.results
        if gate_result.outcome is Outcome.WARNED
        and gate_result.limit.warns
        and gate_result.limit.gate in failing_gates
        and not gate_result.remedy  # a result with a remedy was not judged
        # Without a late rank, exposed_wait warns on any device.
        and (gate_result.limit.gate != "exposed_wait" or gate_result.subject)
    )
