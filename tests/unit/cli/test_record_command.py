"""What ``zprof record`` takes for itself, and what it leaves to the program."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zprof.cli.entry import parse
from zprof.cli.record import RecordCommand
from zprof.integrations.program import record
from zprof.integrations.program.session import ProgramSettings
from zprof.model.errors import BadInput


def parsed(*arguments: str) -> argparse.Namespace:
    command, namespace = parse(["record", *arguments])
    assert isinstance(command, RecordCommand)
    return namespace


@pytest.mark.parametrize(
    "program",
    [
        ["python", "train.py", "--lr", "3"],
        ["python", "train.py", "--force", "-o", "x"],
        ["torchrun", "--nproc-per-node", "2", "train.py", "--", "--help"],
        ["sh", "-c", "exit 3"],
    ],
)
@pytest.mark.parametrize("separator", [["--"], []])
def test_the_program_keeps_its_arguments(
    program: list[str], separator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(
        command: Sequence[str], settings: ProgramSettings, *, force: bool, on: bool, say: Any, grace_s: float
    ) -> int:
        seen.append((list(command), force, settings))
        return 3

    monkeypatch.setattr(record, "record_command", run)
    namespace = parsed("-o", "r.zprof", "--time-steps", "4", *separator, *program)
    assert RecordCommand().run(namespace) == 3
    ((command, force, settings),) = seen
    assert (command, force) == (program, False)
    assert (settings.run, settings.time, settings.memory) == (str(Path("r.zprof").absolute()), 4, 2)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--", "python"], ["-o", "r", "--time-steps", "-1", "x"], ["-o", "r", "--memory-mode", "no", "x"]],
)
def test_wrong_options_are_one_line(arguments: list[str]) -> None:
    with pytest.raises(BadInput):
        parsed(*arguments)


def test_no_program_is_said() -> None:
    for rest in ([], ["--"]):
        with pytest.raises(BadInput, match="no program given"):
            RecordCommand().run(parsed("-o", "r", *rest))
