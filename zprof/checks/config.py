"""Whose limit counts: defaults < pyproject.toml < zprof.toml < what is said on the command line.

A layer replaces the limits of the weaker ones gate by gate; what turns a gate off takes the weaker limit
away.  Memory may be split by tenant, in any of the ways that TOML has:

    [tool.zprof.check]                         [tool.zprof.check.peak_memory]
    peak_memory = "+2%"                        total = "+2%"
    "peak_memory.activations" = "+0%"          activations = "+0%"
    step_time = {max = "+3%", confidence = 0.95}
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zprof.checks.config_files import Section, section_of, sections_from
from zprof.checks.defaults import default_limits
from zprof.checks.limits import LIMIT_WORDS, parse_limit
from zprof.checks.limits_gates import GATES, MEMORY_PARTS, PEAK_MEMORY, nearest
from zprof.checks.limits_text import quoted
from zprof.model.check import Limit
from zprof.model.errors import BadInput

_TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A limit as somebody states it: ``origin`` is shown beside it, ``place`` is where to mend it."""

    gate: str
    said: object
    origin: str
    place: str


def limits_for(
    folder: Path, *, config: Path | None = None, flags: Iterable[Stated] = ()
) -> tuple[Limit, ...]:
    """The limits that hold in ``folder``, in the order of the gates.

    ``config`` is read in place of the files around ``folder``; ``flags`` are stronger than all files.

    Raises:
        BadInput: a file or a flag says what makes no sense; the line names it.
    """
    held: dict[str, Limit | None] = {limit.gate: limit for limit in default_limits()}
    for section in _sections(folder, config):
        held |= _limits(stated_in(section, folder))
    held |= _limits(flags)
    in_order = (held.get(gate.name) for gate in GATES)
    return tuple(limit for limit in in_order if limit is not None)


def stated_in(section: Section, folder: Path) -> Iterator[Stated]:
    """The limits of a file, tenants apart; it is called by its path below ``folder``, else by its name.

    Raises:
        BadInput: a gate has two limits.
    """
    seen: set[str] = set()
    path = folder / section.path
    origin = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    for key, said in section.table.items():
        place = f"{section.path}, {section.name} {_shown(key)}"
        for gate, part, at in _parts(key, said, place):
            if gate in seen:
                raise BadInput(f"{at}: {gate} has two limits", hint="leave one")
            seen.add(gate)
            yield Stated(gate=gate, said=part, origin=origin, place=at)


def _sections(folder: Path, config: Path | None) -> tuple[Section, ...]:
    if config is None:
        return sections_from(folder)
    section = section_of(config)
    if section is None:
        raise BadInput(f"{config}: has no [tool.zprof.check]", hint="add it, or leave out --config")
    return (section,)


def _limits(stated: Iterable[Stated]) -> dict[str, Limit | None]:
    return {
        entry.gate: parse_limit(entry.gate, entry.said, origin=entry.origin, place=entry.place)
        for entry in stated
    }


def _parts(key: str, said: object, place: str) -> Iterator[tuple[str, object, str]]:
    """Gate, what is said of it, and where: a table of tenants is taken apart, all else is one gate."""
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
                f"{place}: has no part {quoted(name)}",
                hint=nearest(name, (_TOTAL, *MEMORY_PARTS, *LIMIT_WORDS)),
            )
        yield PEAK_MEMORY if name == _TOTAL else f"{PEAK_MEMORY}.{name}", part, f"{place}.{name}"


def _shown(key: str) -> str:
    return key if key.isidentifier() and key.isascii() and len(key) < 48 else quoted(key)
