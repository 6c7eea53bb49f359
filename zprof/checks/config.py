"""Find the limits that apply: defaults < pyproject.toml < zprof.toml < the command line.

Each file is searched from a folder upwards to the root of the repository (the folder that holds ``.git``).
The first one that configures zprof counts. A layer replaces weaker limits gate by gate, or turns a gate off.
Memory may be split by tenant, in any of the ways that TOML offers:

    [tool.zprof.check]                         [tool.zprof.check.peak_memory]
    peak_memory = "+2%"                        total = "+2%"
    "peak_memory.activations" = "+0%"          activations = "+0%"
    step_time = {max = "+3%", confidence = 0.95}
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zprof.checks.limit_text import quote_input
from zprof.checks.limits import (
    GATES,
    LIMIT_WORDS,
    MEMORY_PARTS,
    PEAK_MEMORY,
    find_gate,
    parse_limit,
    suggest_names,
)
from zprof.model.check import DEFAULT, Check, Limit, Outcome
from zprof.model.errors import BadInput

PYPROJECT = "pyproject.toml"
ZPROF_TOML = "zprof.toml"
_MAX_BYTES = 1 << 20
_MAX_FOLDERS = 64
_TABLE_NAME = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The table of limits of one file; ``name`` is its header, such as ``[tool.zprof.check]``."""

    path: Path
    name: str
    table: Mapping[str, object]


def find_sections(folder: Path) -> tuple[Section, ...]:
    """Return the tables of the nearest pyproject.toml and the nearest zprof.toml, the weaker one first.

    Raises:
        BadInput: One of them cannot be used.
    """
    found = (_find_nearest(folder, PYPROJECT), _find_nearest(folder, ZPROF_TOML))
    return tuple(section for section in found if section is not None)


def read_section(path: Path) -> Section | None:
    """Return the table of limits in ``path``, None if the file does not configure zprof.

    Raises:
        BadInput: The file does not exist or is not TOML, or the table has another type.
    """
    document = _read_document(path)
    if path.name != PYPROJECT:
        return _check_section(path, document, "")
    tool = _get_table(path, document, "tool", "")
    if "zprof" not in tool:
        return None
    return _check_section(path, _get_table(path, tool, "zprof", "tool."), "tool.zprof.")


def _find_nearest(folder: Path, name: str) -> Section | None:
    for place in _walk_up(folder):
        path = place / name
        section = read_section(path) if _is_there(path, Path.is_file) else None
        if section is not None:
            return section
    return None


def _walk_up(folder: Path) -> Iterator[Path]:
    """Yield ``folder`` and its parents, up to the root of the repository."""
    start = folder.resolve()
    for place in (start, *start.parents)[:_MAX_FOLDERS]:
        yield place
        if _is_there(place / ".git", Path.exists):
            return


def _is_there(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # a folder without read permission configures nothing
        return False


def _check_section(path: Path, holder: Mapping[str, Any], prefix: str) -> Section:
    for key in holder:
        if key != _TABLE_NAME:
            where = f"[{prefix[:-1]}]" if prefix else "its top"
            raise BadInput(
                f"{path}: {where} has {quote_input(key)}, which zprof does not know",
                hint=f"limits stand in [{prefix}{_TABLE_NAME}]",
            )
    table = _get_table(path, holder, _TABLE_NAME, prefix)
    return Section(path=path, name=f"[{prefix}{_TABLE_NAME}]", table=table)


def _get_table(path: Path, holder: Mapping[str, Any], key: str, prefix: str) -> Mapping[str, Any]:
    table = holder.get(key, {})
    if not isinstance(table, dict):
        raise BadInput(f"{path}: {prefix}{key} is no table", hint=f"write [{prefix}{key}]")
    return table


def _read_document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except RecursionError:
        raise BadInput(f"{path}: nested too deep", hint="mend it") from None
    except ValueError as error:  # not TOML, or a number with too many digits
        raise BadInput(f"{path}: is no TOML: {_quote_reason(error)}", hint="mend it") from None


def _quote_reason(error: ValueError) -> str:
    return quote_input(error).strip('"')


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise BadInput(f"{path}: no such file", hint="name a TOML file with limits")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="name another file") from None
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{path}: larger than 1 MiB", hint="limits take a few lines")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is no UTF-8", hint="save it as UTF-8") from None


_TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLimit:
    """A limit as written: ``origin`` is shown beside it, ``place`` names where to correct it."""

    gate: str
    said: object
    origin: str
    place: str


def limits_for(
    folder: Path, *, config: Path | None = None, flags: Iterable[StatedLimit] = ()
) -> tuple[Limit, ...]:
    """Return the limits that apply in ``folder``, in the order of the gates.

    ``config`` is read instead of the files around ``folder``. ``flags`` override all files.

    Raises:
        BadInput: A file or a flag states an invalid limit; the message names it.
    """
    held: dict[str, Limit | None] = {limit.gate: limit for limit in default_limits()}
    for section in _choose_sections(folder, config):
        held |= _parse_limits(list_stated_limits(section, folder))
    held |= _parse_limits(flags)
    in_order = (held.get(gate.name) for gate in GATES)
    return tuple(limit for limit in in_order if limit is not None)


def list_stated_limits(section: Section, folder: Path) -> Iterator[StatedLimit]:
    """Yield the limits of a file, one per tenant. Their origin is its path below ``folder``, else its name.

    Raises:
        BadInput: A gate has two limits.
    """
    seen: set[str] = set()
    path = folder / section.path
    origin = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    for key, said in section.table.items():
        place = f"{section.path}, {section.name} {_quote_key(key)}"
        for gate, part, at in _split_parts(key, said, place):
            if gate in seen:
                raise BadInput(f"{at}: {gate} has two limits", hint="leave one")
            seen.add(gate)
            yield StatedLimit(gate=gate, said=part, origin=origin, place=at)


def _choose_sections(folder: Path, config: Path | None) -> tuple[Section, ...]:
    if config is None:
        return find_sections(folder)
    section = read_section(config)
    if section is None:
        raise BadInput(f"{config}: has no [tool.zprof.check]", hint="add it, or leave out --config")
    return (section,)


def _parse_limits(stated: Iterable[StatedLimit]) -> dict[str, Limit | None]:
    return {
        entry.gate: parse_limit(entry.gate, entry.said, origin=entry.origin, place=entry.place)
        for entry in stated
    }


def _split_parts(key: str, said: object, place: str) -> Iterator[tuple[str, object, str]]:
    """Yield gate, limit and place; a table of tenants is split, anything else is one gate."""
    if key != PEAK_MEMORY or not isinstance(said, Mapping):
        yield key, said, place
        return
    total = {word: part for word, part in said.items() if word in LIMIT_WORDS}
    if total or not said:
        yield PEAK_MEMORY, total, place
    for name, part in said.items():
        if name in LIMIT_WORDS:
            continue
        if name != _TOTAL and name not in MEMORY_PARTS:
            raise BadInput(
                f"{place}: has no part {quote_input(name)}",
                hint=suggest_names(name, (_TOTAL, *MEMORY_PARTS, *LIMIT_WORDS)),
            )
        yield PEAK_MEMORY if name == _TOTAL else f"{PEAK_MEMORY}.{name}", part, f"{place}.{name}"


def _quote_key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() and len(key) < 48 else quote_input(key)


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
    limits = (parse_limit(gate, said, origin=DEFAULT) for gate, said in DEFAULTS.items())
    return tuple(limit for limit in limits if limit is not None)


def soften_for_device(limits: Iterable[Limit], device: str) -> tuple[Limit, ...]:
    """Return ``limits`` as they apply on ``device`` (``cpu`` or a GPU).

    On CPU ranks a default limit of time warns and does not fail. Such ranks share their cores with whatever
    else a CI machine runs, so their times reflect that as much as the program. A limit that a user stated
    fails on any device, and so does every limit of bytes and counts.
    """
    return tuple(replace(limit, warns=True) if _is_softened(limit, device) else limit for limit in limits)


def list_softened(limits: Iterable[Limit], found: Check) -> tuple[str, ...]:
    """Return the gates that would have failed in ``found`` without :func:`soften_for_device`."""
    fail = {limit.gate for limit in limits if not limit.warns}
    return tuple(
        result.limit.gate
        for result in found.results
        if result.outcome is Outcome.WARNED
        and result.limit.warns
        and result.limit.gate in fail
        and not result.remedy  # a result with a remedy was not judged
        and (result.limit.gate != "exposed_wait" or result.subject)  # without a late rank it only warns
    )


def _is_softened(limit: Limit, device: str) -> bool:
    gate = find_gate(limit.gate)
    return device == "cpu" and limit.origin == DEFAULT and gate is not None and gate.is_timed
