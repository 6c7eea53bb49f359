"""Run the console examples of the pages and write their output into the pages.

An example is a fenced ``console`` block: ``$ COMMAND`` lines, each followed by what it prints.  A comment
before the block says which parts of the last command's output are shown, each named by the beginning of its
heading (``head`` is what precedes the first heading), with a number if it is cut after so many lines::

    <!-- shown: head 4, WHAT TO CHANGE 9 -->

Commands that record are not run again: what they printed is kept beside their recordings.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Pages whose examples are run.
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LEFT_OUT = "  ..."
_EXAMPLE = re.compile(r"(?:<!-- shown: (?P<shown>[^>]*) -->\n)?```console\n(?P<text>.*?)```\n", re.DOTALL)
_HEADING = re.compile(r"[A-Z][A-Z]+[A-Z0-9 ',?()/-]*(  .*)?")
_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A console block of a page: its commands, the parts it shows (None: everything), and its text."""

    commands: tuple[str, ...]
    shown: tuple[str, ...] | None
    text: str


def read_examples(page: Path) -> list[Example]:
    """Return the examples of a page in order."""
    return [_make_example(match) for match in _EXAMPLE.finditer(page.read_text(encoding="utf-8"))]


def rewrite_page(page: Path, folder: Path, recorded: Mapping[str, str]) -> None:
    """Run the examples of a page in ``folder`` and put what they print into the page."""

    def render(match: re.Match[str]) -> str:
        example = _make_example(match)
        comment = f"<!-- shown: {match['shown']} -->\n" if match["shown"] else ""
        return f"{comment}```console\n{run_example(example, folder, recorded)}```\n"

    page.write_text(_EXAMPLE.sub(render, page.read_text(encoding="utf-8")), encoding="utf-8")


def run_example(example: Example, folder: Path, recorded: Mapping[str, str]) -> str:
    """Return the text of the block as the commands print it today.

    Raises:
        RuntimeError: a command cannot be run here, or ends in an error.
    """
    lines = []
    for number, command in enumerate(example.commands, start=1):
        output = recorded[command] if command in recorded else _run_command(command, folder)
        is_last = number == len(example.commands)
        if is_last and example.shown is not None:
            output = select_parts(output, example.shown)
        lines.append(f"$ {command}\n{output.strip()}\n" if output.strip() else f"$ {command}\n")
    return "".join(lines)


def select_parts(output: str, shown: tuple[str, ...]) -> str:
    """Return the named parts of a page of text, with a mark for what is left out between and after them."""
    parts = _split_parts(output)
    picked: list[str] = []
    for choice in shown:
        name, _, count = choice.rpartition(" ") if choice[-1].isdigit() else (choice, "", "")
        found = next((part for part in parts if name == "head" or part[0].startswith(name)), None)
        if found is None:
            raise RuntimeError(f"no part {name!r} among {[part[0] for part in parts]}")
        cut = _strip_empty_lines(found[: int(count)]) if count else found
        picked.append("\n".join([*cut, LEFT_OUT] if len(cut) < len(found) else cut))
    return "\n\n".join(picked)


def _make_example(match: re.Match[str]) -> Example:
    commands = tuple(line[2:] for line in match["text"].splitlines() if line.startswith("$ "))
    shown = tuple(part.strip() for part in match["shown"].split(",")) if match["shown"] else None
    return Example(commands=commands, shown=shown, text=match["text"])


def _split_parts(output: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in output.strip().splitlines():
        if _HEADING.fullmatch(line) and parts[-1][-1:] == [""]:
            parts.append([line])
        else:
            parts[-1].append(line)
    return [_strip_empty_lines(part) for part in parts]


def _strip_empty_lines(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _run_command(command: str, folder: Path) -> str:
    program, *arguments = shlex.split(command)
    if program != "zprof":
        raise RuntimeError(f"{command}: only zprof is run by an example; put others in a block of sh")
    environment = os.environ | {
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / ".cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "zprof", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, 1):  # 1: a check that fails
        raise RuntimeError(f"{command}: exit code {done.returncode}: {done.stderr[-400:]}")
    return done.stdout + select_notes(done.stderr)


def select_notes(stderr: str) -> str:
    """Return the notes that say what was written; others have progress, and folders of this machine."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("zprof: wrote"))
