"""The argument parser: built for the one command that is called, errors raised instead of printed."""

import argparse
import inspect
from collections.abc import Sequence
from typing import Any, NoReturn

from zprof.cli.command import Command
from zprof.cli.registry import COMMANDS, Entry
from zprof.cli.terminal import console
from zprof.model.errors import BadInput
from zprof.version import __version__

_DESCRIPTION = "Says why sharded training is slow or out of memory, and what to change."
_EXAMPLE = "example:\n  zprof report zero3.zprof --baseline ddp.zprof"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ZprofErrors: only ``main()`` prints and exits."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise BadInput(message, hint=f"{self.prog} --help shows how")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and version, which argparse would drop where stdout cannot be written."""
        console.data(message)


def parse(
    arguments: Sequence[str], commands: Sequence[Entry] = COMMANDS
) -> tuple[Command | None, argparse.Namespace]:
    """The command that is called, and its arguments; None where none is named.

    Raises:
        BadInput: the arguments cannot be used.
        SystemExit: after ``--help`` and ``--version``.
    """
    parser = build_parser()
    children = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = None
    for entry in commands:
        child = _add(children, entry)
        if entry.name == called:
            command = entry.load()
            _describe(child, command)
    return command, parser.parse_args(list(arguments))


def build_parser() -> Parser:
    """The parser without its commands."""
    parser = Parser(
        prog="zprof",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zprof {__version__}")
    return parser


def _add(children: "argparse._SubParsersAction[Parser]", entry: Entry) -> Parser:
    return children.add_parser(
        entry.name, help=entry.summary, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _describe(parser: Parser, command: Command) -> None:
    parser.description = inspect.getdoc(type(command))
    command.add_arguments(parser)
