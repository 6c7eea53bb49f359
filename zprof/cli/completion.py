"""``zprof completion``, and the completion of commands, options, choices, runs, files and findings.

The shell calls zprof for each completion, and argcomplete writes the answer, so suggestions always match the
installed version and the current folder. Other starts of zprof load none of this.
"""

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from zprof.cli import console
from zprof.cli.parser import build_parser

_SHELLS = ("bash", "zsh", "fish")
#: Kind of an argument's value, by its metavar.
_RUNS = frozenset({"RUN", "BASELINE", "A", "B", "TRACE", "PATH", "FILE|RUN"})
_FILES = frozenset({"FILE", "FOLDER", "DIR"})
_FINDING = "ID"
_RUN_SUFFIXES = (".json", ".json.gz", ".json.zst", ".pickle", ".pkl")
#: Maximum folder entries that are examined; trace folders may have very many.
_MAX_ENTRIES = 4096


class CompletionCommand:
    """Print a script that completes zprof's commands, options, runs and findings.

    bash: add this line to ~/.bashrc, zsh: the same with zsh in ~/.zshrc, after compinit:
      eval "$(zprof completion bash)"
    fish: write the script to a file once:
      zprof completion fish > ~/.config/fish/completions/zprof.fish

    examples:
      zprof completion bash
      zprof completion zsh
    """

    name = "completion"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the shell."""
        parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help="bash, zsh or fish")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the script."""
        from argcomplete.shell_integration import shellcode

        console.print_data(shellcode(["zprof"], shell=arguments.shell) + "\n")
        return 0


def complete() -> None:
    """Answer the shell, which passes the line in the environment, and exit."""
    import argcomplete

    # The parser for the line so far; a command that cannot be loaded has no options.
    words = os.environ.get("COMP_LINE", "").split()[1:]
    try:
        parser, _ = build_parser(words)
    except Exception:  # any error of a broken or missing package must not break the line
        parser, _ = build_parser(())
    argcomplete.autocomplete(
        parser,
        always_complete_options="long",
        default_completer=_complete_value,  # type: ignore[arg-type]  # it is only called
    )


def _complete_value(*, prefix: str, action: argparse.Action, **_: object) -> Iterator[str]:
    """Yield possible values of an argument that start with ``prefix``."""
    kind = str(action.metavar)
    if kind == _FINDING:
        from zprof.model.findings import read_index

        for entry in read_index():
            yield from (name for name in (entry.id, entry.name) if name.startswith(prefix))
    elif kind in _RUNS:
        yield from _complete_path(prefix, _RUN_SUFFIXES)
    elif kind in _FILES or action.nargs == argparse.REMAINDER:
        yield from _complete_path(prefix)


def _complete_path(prefix: str, suffixes: tuple[str, ...] = ("",)) -> Iterator[str]:
    """Yield folders, and files with one of the suffixes; folders that are not runs end with ``/``."""
    from zprof.run.manifest import MANIFEST_NAME

    head, slash, start = prefix.rpartition("/")
    try:
        with os.scandir(Path(f"{head}{slash}" or ".").expanduser()) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                name = entry.name
                if not name.startswith(start) or (name.startswith(".") and not start):
                    continue
                if entry.is_dir():
                    is_run = os.path.exists(os.path.join(entry.path, MANIFEST_NAME))
                    yield f"{head}{slash}{name}" + ("" if is_run else "/")
                elif name.endswith(suffixes):
                    yield f"{head}{slash}{name}"
    except (OSError, RuntimeError, ValueError):  # no such folder; no home; a null character
        return
