"""Run the commands of a case as a user would, in a folder of its own, and return what they wrote and printed.

What is not compared, and why; everything else is:

| what | where | why |
|---|---|---|
| the path of the case's folder | all text | it is a temporary one (``REPLACED``) |
| the version of zprof | all text | a release changes it (``REPLACED``) |
| digits of a float after the tenth | JSON | they depend on the processor's vector units (``FLOAT_DIGITS``) |
| the order of an object's keys | JSON | JSON has none |
| style and script | HTML | they are the same in all pages and have no facts |
"""

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import Struct

from benchmarks.frozen.inputs import Write
from tests.support.html_pages import without_assets
from zprof.cli import main as run_zprof
from zprof.version import __version__

#: A document is a JSON value or a list of lines, by its file name; of a command's own output, by its command.
Documents = dict[str, Any]

#: Formats that a command writes, all at once. ``diagnose -f json`` is the JSON of ``report``.
FORMATS = {
    "report": ("json", "txt", "md", "html"),
    "diagnose": ("txt", "md"),
    "compare": ("json", "txt", "md", "html"),
    "whatif": ("json", "txt", "md", "html"),
    "plan": ("json", "txt", "md", "html"),
    "hang": ("json", "txt", "md", "html"),
    "check": ("json", "txt", "md", "html", "xml", "sarif"),
}
_JSON = (".json", ".sarif")
#: Digits of a float in JSON that are compared.
FLOAT_DIGITS = 10
#: Of the environment a command sees, besides what is set below.
_DROPPED = re.compile(r"ZPROF_|GITHUB_|XDG_|FORCE_COLOR|COLUMNS|TERM$")


class Case(Struct, frozen=True, kw_only=True):
    """Inputs, and the commands that run in their folder, without the leading ``zprof``.

    A command of ``FORMATS`` without ``-o``, ``-f`` or ``--list`` writes a file in each of its formats.
    """

    name: str
    commands: tuple[str, ...]
    inputs: tuple[Write, ...] = ()


#: Patterns and what stands for them; ``{folder}`` is the path of the case's folder.
REPLACED = {
    r"{folder}": "FOLDER",
    r"(?<![\d.])" + re.escape(__version__) + r"(?![\d.])": "VERSION",
}


def run_case(case: Case) -> Documents:
    """Return what the commands of a case wrote and printed, and their exit codes."""
    with tempfile.TemporaryDirectory(prefix="zprof-frozen-") as name:
        top = Path(name).resolve()
        folder = top / "case"
        folder.mkdir()
        for write in case.inputs:
            write(folder)
        documents: Documents = {}
        with _isolate(top, folder):
            seen = _list_files(folder)
            for number, command in enumerate(case.commands):
                arguments = _add_formats(shlex.split(command), number)
                documents[f"zprof {command}"] = _run_command(arguments, folder)
                written = _list_files(folder) - seen
                seen |= written
                for path in sorted(written):
                    documents[path] = _read_document(folder / path, folder)
    return documents


@contextlib.contextmanager
def _isolate(top: Path, folder: Path) -> Iterator[None]:
    """Run in ``folder``, with an empty cache and home, in UTC, without colour and a terminal."""
    kept = {name: value for name, value in os.environ.items() if not _DROPPED.match(name)}
    own = {
        "XDG_CACHE_HOME": str(top / "cache"),
        "HOME": str(top / "home"),
        "NO_COLOR": "1",
        "TZ": "UTC",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }
    before = Path.cwd()
    with mock.patch.dict(os.environ, kept | own, clear=True):
        time.tzset()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
    time.tzset()


def _list_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def _add_formats(arguments: Sequence[str], number: int) -> list[str]:
    command = arguments[0]
    if command not in FORMATS or {"-o", "-f", "--list"} & set(arguments):
        return list(arguments)
    name = f"{command}-{number}" if number else command
    return [*arguments, *(part for suffix in FORMATS[command] for part in ("-o", f"{name}.{suffix}"))]


def _run_command(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return exit code, stdout and stderr, as lines."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_zprof(arguments)
    printed = []
    for stream in (out, err):
        stream.flush()
        printed.append(stream.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]
    replace = make_replace(folder)
    lines = [f"out: {line}" for line in replace(printed[0]).splitlines()]
    return [f"exit code {code}", *lines, *(f"err: {line}" for line in replace(printed[1]).splitlines())]


def _read_document(path: Path, folder: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    replace = make_replace(folder)
    if path.suffix in _JSON:
        return normalise(json.loads(text), replace)
    return replace(without_assets(text) if path.suffix == ".html" else text).splitlines()


def make_replace(folder: Path) -> Callable[[str], str]:
    """Return what makes all replacements in a text."""
    replacements = [
        (re.compile(pattern.replace("{folder}", re.escape(str(folder)))), by)
        for pattern, by in REPLACED.items()
    ]

    def replace(text: str) -> str:
        for pattern, by in replacements:
            text = pattern.sub(by, text)
        return text

    return replace


def normalise(value: Any, replace: Callable[[str], str]) -> Any:
    """Return a JSON value with its replacements, and with the first ``FLOAT_DIGITS`` digits of floats."""
    if isinstance(value, dict):
        return {replace(key): normalise(each, replace) for key, each in value.items()}
    if isinstance(value, list):
        return [normalise(each, replace) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{FLOAT_DIGITS}g}")
    return replace(value) if isinstance(value, str) else value
