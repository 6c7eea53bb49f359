"""Parse the command line: command groups, the options of the called command only, and did-you-mean hints.

Errors are raised as ``BadInput``, never printed: only ``main()`` prints and exits.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NoReturn

from zprof.base.errors import BadInput, ask_for_name
from zprof.cli import console
from zprof.cli.registry import COMMANDS, Command, Entry, Group
from zprof.version import __version__

HELP_COMMAND = "help"
_DESCRIPTION = "Explains why sharded training is slow or runs out of memory, and what to change."
_NEXT_STEPS = """\
Getting started:
  zprof diagnose RUN                             analyze a recording or a trace
  zprof record -o run.zprof -- python train.py   record a training job
  zprof demo                                     try it on a small job

zprof help COMMAND explains a command, zprof help ZP301 a finding."""
#: Maximum characters of a quoted word, and maximum choices listed, in an error.
_MAX_QUOTED, _MAX_LISTED = 80, 12
_MAX_HELP_COLUMNS = 100


def parse(
    arguments: Sequence[str], commands: Sequence[Entry] = COMMANDS
) -> tuple[Command, argparse.Namespace]:
    """Return the called command and its arguments.

    Raises:
        BadInput: The arguments are invalid.
        SystemExit: After ``--help`` (also implied by an empty command line) and ``--version``.
    """
    words = list(arguments) or ["--help"]
    if words[0] == HELP_COMMAND:
        words = _expand_help(words[1:], commands)
    if not words[0].startswith("-"):
        _check_command(words[0], commands)
    parser, command = build_parser(words, commands)
    parsed = parser.parse_args(words)
    if command is None:  # only options of zprof itself
        raise BadInput("no command given", hint="zprof --help lists the commands")
    return command, parsed


def build_parser(
    words: Sequence[str], commands: Sequence[Entry] = COMMANDS
) -> "tuple[Parser, Command | None]":
    """Return the parser and the called command. If there is one, the parser contains only that command."""
    parser = Parser(
        prog="zprof",
        usage="zprof COMMAND [options]",
        description=f"{_DESCRIPTION}\n\n{_format_groups(commands)}",
        epilog=_NEXT_STEPS,
    )
    parser.add_argument("--version", action="version", version=f"zprof {__version__}")
    children = parser.add_subparsers(
        prog=parser.prog, metavar="COMMAND", dest="command", help=argparse.SUPPRESS
    )
    called = next((word for word in words if not word.startswith("-")), None)
    command = None
    for entry in [entry for entry in commands if entry.name == called] or commands:
        child = children.add_parser(entry.name, help=entry.summary)
        if entry.name == called:
            command = entry.load()
            child.command = command
            command.add_arguments(child)
    return parser, command


def _format_groups(commands: Sequence[Entry]) -> str:
    """List the commands of each group with their summaries."""
    width = max(len(entry.name) for entry in commands)
    lines: list[str] = []
    for group in Group:
        entries = [entry for entry in commands if entry.group is group]
        lines += [f"{group.value}:", *(f"  {entry.name:<{width}}  {entry.summary}" for entry in entries), ""]
    return "\n".join(lines).rstrip()


def _expand_help(topic: Sequence[str], commands: Sequence[Entry]) -> list[str]:
    """Return the arguments that ``zprof help TOPIC`` stands for: a command's --help or a finding's page."""
    if not topic:
        return ["--help"]
    if topic[0] not in {entry.name for entry in commands} and _is_finding(topic[0]):
        return ["explain", *topic]
    _check_command(topic[0], commands)
    return [*topic, "--help"]


def _is_finding(topic: str) -> bool:
    """Return True for the name of a finding, or a word that looks like a finding ID."""
    from zprof.model.findings import read_index

    name = topic.lower()
    return (name[:2] == "zp" and name[2:].isdecimal()) or name.replace("-", "_") in {
        entry.name for entry in read_index()
    }


def _check_command(name: str, commands: Sequence[Entry]) -> None:
    known = [*(entry.name for entry in commands), HELP_COMMAND]
    if name in known:
        return
    hint = ask_for_name(name, known)
    if not hint and _exists(name):
        hint = f"to open that file or folder: zprof diagnose {name[:_MAX_QUOTED]}"
    raise BadInput(f"no command {name[:_MAX_QUOTED]!r}", hint=hint or "zprof --help lists the commands")


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


class UsageError(BadInput):
    """Arguments that ``parser`` rejects."""

    def __init__(self, message: str, *, hint: str, parser: argparse.ArgumentParser) -> None:
        super().__init__(message, hint=hint)
        self.parser = parser


class HelpFormatter(argparse.HelpFormatter):
    """Wraps text for the terminal, except indented lines, which are commands to copy."""

    def __init__(self, prog: str, columns: int = _MAX_HELP_COLUMNS) -> None:
        super().__init__(prog, width=columns - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_text, group in groupby(text.splitlines(), lambda line: line[:1] not in ("", " ")):
            block = list(group)
            lines += [super()._fill_text(" ".join(block), width, indent)] if is_text else block
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ``UsageError`` with did-you-mean hints.

    ``command``: the command whose docstring is the description, needed only for the help.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter} | options)
        self.command: Command | None = None

    def format_help(self) -> str:
        """Return the help with the command's docstring, wrapped to the terminal width."""
        columns = min(console.get_terminal_columns(), _MAX_HELP_COLUMNS)
        self.formatter_class = partial(HelpFormatter, columns=columns)
        if self.command is not None:
            from inspect import getdoc

            self.description = getdoc(type(self.command))
        return super().format_help()

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed, in one signature
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; reject unknown ones here, where similar known ones can be suggested."""
        words: list[str] = list(args or ())
        try:
            parsed, extra = super().parse_known_args(words, namespace)
        except UsageError as error:
            # An argument may be missing because its option is mistyped: reporting the option is more helpful.
            mistyped = next(self._list_unknown_options(words), None) if error.parser is self else None
            raise self._refuse([mistyped]) if mistyped else error from None
        # Give leftover words to optional positionals without a value. In ``A --option x B``, argparse
        # consumes an optional positional together with the previous positional, so it never receives the
        # words after the next option.
        rest = list(extra)
        for action in self._actions:
            is_open = action.nargs == "?" and not action.option_strings
            if is_open and getattr(parsed, action.dest, None) is None and rest and rest[0][:1] != "-":
                try:
                    action(self, parsed, self._get_values(action, [rest.pop(0)]))
                except argparse.ArgumentError as error:
                    self.error(str(error))
        extra = rest
        if extra:
            raise self._refuse(extra)
        return parsed, extra

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print."""
        raise UsageError(message, hint=f"see {self.prog} --help", parser=self)

    def _refuse(self, words: Sequence[str]) -> UsageError:
        """Return the error for unexpected arguments."""
        hint = f"see {self.prog} --help"
        word = next((word for word in words if word.startswith("-")), words[0])[:_MAX_QUOTED]
        if word.startswith("-"):
            name = word.partition("=")[0]
            hint = ask_for_name(name, self._option_string_actions) or hint
            return UsageError(f"unknown option {name}", hint=hint, parser=self)
        if any(action.metavar == "RUN" and not action.option_strings for action in self._actions):
            hint = f"rank files of one job are one RUN: pass their folder; {hint}"
        return UsageError(f"unexpected argument {word!r}", hint=hint, parser=self)

    def _list_unknown_options(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the long options unknown to this parser, excluding options of a program that follows."""
        own = words
        if "--" in words:
            own = words[: words.index("--")]
        elif any(action.nargs == argparse.REMAINDER for action in self._actions):
            own = list(takewhile(lambda word: word.startswith("-"), words))
        for word in own:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(
                option.startswith(name) for option in self._option_string_actions
            ):
                yield name

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Convert the words of one argument, but reject an empty word: ``Path("")`` is the current folder.

        Parsers of quantities do not know their argument: its name is added to the error here.
        """
        if "" in arg_strings and action.nargs != argparse.REMAINDER:
            name = argparse.ArgumentError(action, "").argument_name
            raise UsageError(
                f"argument {name}: is empty", hint="perhaps it is a variable that is not set", parser=self
            )
        try:
            return super()._get_values(action, arg_strings)
        except UsageError:  # names it already
            raise
        except BadInput as error:
            raise argparse.ArgumentError(action, error.message) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject a value that is not a choice; argparse would list all choices, however many there are."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        listed = f"none of {', '.join(known)}" if len(known) <= _MAX_LISTED else "not one of its choices"
        name = argparse.ArgumentError(action, "").argument_name
        raise UsageError(
            f"argument {name}: {str(value)[:_MAX_QUOTED]!r} is {listed}",
            hint=ask_for_name(str(value), known) or f"see {self.prog} --help",
            parser=self,
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and version; argparse itself would ignore an unwritable stdout."""
        console.print_data(message)
