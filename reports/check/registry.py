"""The formats a check can be written in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from zprof.model.check import Check
from zprof.model.errors import BadInput
from zprof.model.json_tree import to_json
from zprof.model.report import Report
from zprof.reports.check import github, junit, markdown, sarif, text


class RenderCheck(Protocol):
    """A check and the report that it judged in, the text of one format out."""

    def __call__(self, check: Check, report: Report) -> str:
        """The whole document, with a line break at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFormat:
    """A format by name, and the file suffixes that mean it."""

    name: str
    suffixes: tuple[str, ...]
    render: RenderCheck


def _json(check: Check, report: Report) -> str:
    """The check as one indented JSON object (``zprof.check/1``); the report has a document of its own."""
    return to_json(check)


CHECK_FORMATS: tuple[CheckFormat, ...] = (
    CheckFormat(name="text", suffixes=(".txt", ".text"), render=text.render),
    CheckFormat(name="json", suffixes=(".json",), render=_json),
    CheckFormat(name="md", suffixes=(".md", ".markdown"), render=markdown.render),
    CheckFormat(name="junit", suffixes=(".xml",), render=junit.render),
    CheckFormat(name="sarif", suffixes=(".sarif",), render=sarif.render),
    CheckFormat(name="github", suffixes=(), render=github.render),
)


def check_format_names(formats: Sequence[CheckFormat] = CHECK_FORMATS) -> tuple[str, ...]:
    """Names that ``check_format`` knows."""
    return tuple(entry.name for entry in formats)


def check_format(name: str) -> CheckFormat:
    """The format of that name; raises BadInput with the names there are."""
    for entry in CHECK_FORMATS:
        if entry.name == name:
            return entry
    raise BadInput(f"no format {name!r}", hint=f"formats: {', '.join(check_format_names())}")


def check_format_of(path: PurePath) -> CheckFormat:
    """The format that a file's suffix means; raises BadInput where it means none."""
    for entry in CHECK_FORMATS:
        if path.suffix.lower() in entry.suffixes:
            return entry
    raise BadInput(
        f"{path}: its suffix names no format", hint=f"name one of: {', '.join(check_format_names())}"
    )
