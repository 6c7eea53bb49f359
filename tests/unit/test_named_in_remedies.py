"""What remedies, hints and fixes tell a reader to type is there: functions of zprof, commands, options."""

import argparse
import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import zprof
from zprof.cli.registry import COMMANDS
from zprof.model.gap_texts import read_all_texts
from zprof.model.gap_texts.untested import UNTESTED_TEXTS

ROOT = Path(__file__).parents[2]
FOLDERS = ("zprof", "collectors", "reports", "reference_engine")
ARGUMENTS = ("remedy", "hint", "fix", "disprove")
FUNCTION = re.compile(r"\bzprof\.(\w+)\(", re.ASCII)
#: ``zprof COMMAND`` and the options behind it, up to ``--``, which begins another program's own.
COMMAND = re.compile(r"\bzprof ([a-z]+)((?: (?!--? )[^\s;,:`'\"()]+)*)", re.ASCII)
OPTION = re.compile(r"(?<=\s)--[a-z][a-z-]+", re.ASCII)


@cache
def texts() -> list[tuple[str, str]]:
    """(place, text) of what is given as one of these arguments, without what f-strings fill in."""
    found = []
    for path in [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]:
        source = path.read_text(encoding="utf-8")
        if not any(f"{name}=" in source for name in ARGUMENTS):
            continue
        for call in ast.walk(ast.parse(source)):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg not in ARGUMENTS:
                    continue
                parts = [part.value for part in ast.walk(keyword.value) if isinstance(part, ast.Constant)]
                text = "".join(part for part in parts if isinstance(part, str))
                found.append((f"{path.relative_to(ROOT)}:{call.lineno}", text))
    found += [(key, text.remedy) for key, text in read_all_texts().items()]
    found += [(key, remedy) for key, (_, remedy) in UNTESTED_TEXTS.items()]
    return found


def options() -> dict[str, set[str]]:
    """The options of each command, those of its actions too."""
    known = {}
    for entry in COMMANDS:
        parser = argparse.ArgumentParser()
        entry.load().add_arguments(parser)
        known[entry.name] = set(of_parser(parser))
    return known


def of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from of_parser(inner)


def test_functions_that_remedies_name_are_public() -> None:
    named = {(place, name) for place, text in texts() for name in FUNCTION.findall(text)}
    assert len(named) > 3
    assert {(place, name) for place, name in named if name not in zprof.__all__} == set()


def test_commands_and_options_that_remedies_name_are_there() -> None:
    known = options()
    found = [(place, *match.groups()) for place, text in texts() for match in COMMAND.finditer(text)]
    commands = [(place, name, rest) for place, name, rest in found if name in known or "--" in rest]
    assert len(commands) > 5
    wrong = [
        (place, name, option)
        for place, name, rest in commands
        for option in OPTION.findall(rest)
        if option not in known.get(name, ())
    ]
    assert wrong == []
    assert [(place, name) for place, name, _ in commands if name not in known] == []
