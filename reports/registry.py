"""The formats a report can be written in."""

from pathlib import PurePath

from zprof.model.errors import BadInput
from zprof.reports import json_report, svg_memory
from zprof.reports.base import Format
from zprof.reports.text import report as text

FORMATS: tuple[Format, ...] = (
    Format(name="text", suffixes=(".txt", ".text"), render=text.render),
    Format(name="json", suffixes=(".json",), render=json_report.render),
    Format(name="svg", suffixes=(".svg",), render=svg_memory.render),
)


def format_names() -> tuple[str, ...]:
    """Names that ``by_name`` knows."""
    return tuple(entry.name for entry in FORMATS)


def by_name(name: str) -> Format:
    """The format of that name; raises BadInput with the names there are."""
    for entry in FORMATS:
        if entry.name == name:
            return entry
    raise BadInput(f"no format {name!r}", hint=f"formats: {', '.join(format_names())}")


def by_path(path: PurePath) -> Format:
    """The format that a file's suffix means; raises BadInput where it means none."""
    for entry in FORMATS:
        if path.suffix.lower() in entry.suffixes:
            return entry
    raise BadInput(
        f"{path}: its suffix names no format", hint=f"add -f and one of: {', '.join(format_names())}"
    )
