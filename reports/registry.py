"""The formats a report can be written in."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, overload

from zprof.model.errors import BadInput
from zprof.model.report import Report
from zprof.reports import json_report, junit, sarif, svg_memory
from zprof.reports.base import Document, Format
from zprof.reports.html import report as html
from zprof.reports.markdown import report as markdown
from zprof.reports.text import report as text
from zprof.reports.text.diagnosis import page as diagnosis

FORMATS: tuple[Format[Report], ...] = (
    Format(name="text", suffixes=(".txt", ".text"), render=text.render),
    Format(name="json", suffixes=(".json",), render=json_report.render),
    Format(name="svg", suffixes=(".svg",), render=svg_memory.render),
    Format(name="html", suffixes=(".html", ".htm"), render=html.render),
    Format(name="md", suffixes=(".md", ".markdown"), render=markdown.render),
    Format(name="junit", suffixes=(".xml",), render=junit.render),
    Format(name="sarif", suffixes=(".sarif",), render=sarif.render),
)


#: The same report, cut to the answer.
DIAGNOSES: tuple[Format[Report], ...] = (
    Format(name="text", suffixes=(".txt", ".text"), render=diagnosis.render),
    Format(name="json", suffixes=(".json",), render=json_report.render),
)


def format_names(formats: Sequence[Format[Any]] = FORMATS) -> tuple[str, ...]:
    """Names that ``by_name`` knows."""
    return tuple(entry.name for entry in formats)


@overload
def by_name(name: str) -> Format[Report]: ...
@overload
def by_name(name: str, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_name(name: str, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """The format of that name; raises BadInput with the names there are."""
    for entry in formats:
        if entry.name == name:
            return entry
    raise BadInput(f"no format {name!r}", hint=f"formats: {', '.join(format_names(formats))}")


@overload
def by_path(path: PurePath) -> Format[Report]: ...
@overload
def by_path(path: PurePath, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_path(path: PurePath, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """The format that a file's suffix means; raises BadInput where it means none."""
    for entry in formats:
        if path.suffix.lower() in entry.suffixes:
            return entry
    raise BadInput(
        f"{path}: its suffix names no format", hint=f"add -f and one of: {', '.join(format_names(formats))}"
    )
