"""Where a team's limits stand: ``[tool.zprof.check]`` of pyproject.toml, ``[check]`` of zprof.toml.

Each is looked for from a folder upwards, as far as the root of the repository (the folder that holds
``.git``); the first that says something about zprof counts.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zprof.checks.limits_text import quoted
from zprof.model.errors import BadInput

PYPROJECT = "pyproject.toml"
ZPROF_TOML = "zprof.toml"
_MOST_BYTES = 1 << 20
_MOST_FOLDERS = 64
_SECTION = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The table of limits of one file; ``name`` is its header, such as ``[tool.zprof.check]``."""

    path: Path
    name: str
    table: Mapping[str, object]


def sections_from(folder: Path) -> tuple[Section, ...]:
    """What the nearest pyproject.toml and the nearest zprof.toml say, the weaker first.

    Raises:
        BadInput: one of them cannot be used.
    """
    found = (_nearest(folder, PYPROJECT), _nearest(folder, ZPROF_TOML))
    return tuple(section for section in found if section is not None)


def section_of(path: Path) -> Section | None:
    """The table of limits in ``path``; None where it says nothing about zprof.

    Raises:
        BadInput: there is no such file, it is no TOML, or it has something else where the table should be.
    """
    document = _document(path)
    if path.name != PYPROJECT:
        return _section(path, document, "")
    tool = _table(path, document, "tool", "")
    if "zprof" not in tool:
        return None
    return _section(path, _table(path, tool, "zprof", "tool."), "tool.zprof.")


def _nearest(folder: Path, name: str) -> Section | None:
    for place in _folders(folder):
        path = place / name
        section = section_of(path) if _is_there(path, Path.is_file) else None
        if section is not None:
            return section
    return None


def _folders(folder: Path) -> Iterator[Path]:
    """``folder`` and those above it, down from the root of the repository."""
    start = folder.resolve()
    for place in (start, *start.parents)[:_MOST_FOLDERS]:
        yield place
        if _is_there(place / ".git", Path.exists):
            return


def _is_there(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError:  # a folder that others must not look into has nothing to say
        return False


def _section(path: Path, holder: Mapping[str, Any], prefix: str) -> Section:
    for key in holder:
        if key != _SECTION:
            where = f"[{prefix[:-1]}]" if prefix else "its top"
            raise BadInput(
                f"{path}: {where} has {quoted(key)}, which zprof does not know",
                hint=f"limits stand in [{prefix}{_SECTION}]",
            )
    table = _table(path, holder, _SECTION, prefix)
    return Section(path=path, name=f"[{prefix}{_SECTION}]", table=table)


def _table(path: Path, holder: Mapping[str, Any], key: str, prefix: str) -> Mapping[str, Any]:
    table = holder.get(key, {})
    if not isinstance(table, dict):
        raise BadInput(f"{path}: {prefix}{key} is no table", hint=f"write [{prefix}{key}]")
    return table


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except RecursionError:
        raise BadInput(f"{path}: nested too deep", hint="mend it") from None
    except ValueError as error:  # no TOML, or a number of too many digits
        raise BadInput(f"{path}: is no TOML: {_why(error)}", hint="mend it") from None


def _why(error: ValueError) -> str:
    return quoted(error).strip('"')


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise BadInput(f"{path}: no such file", hint="name a TOML file with limits")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="name another file") from None
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path}: larger than 1 MiB", hint="limits take a few lines")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is no UTF-8", hint="save it as UTF-8") from None
