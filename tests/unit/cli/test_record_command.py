"""``zprof record``: what it takes for itself, and what it leaves to the program."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import Call
from zprof.collectors.record.launch import record


@pytest.mark.parametrize(
    "program",
    [
        ["python", "train.py", "--force", "-o", "x"],
        ["torchrun", "--nproc-per-node", "2", "train.py", "--", "--help"],
        ["sh", "-c", "exit 3"],
    ],
)
@pytest.mark.parametrize("separator", [["--"], []])
def test_the_program_keeps_its_arguments(
    call: Call, program: list[str], separator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(command: Sequence[str], settings: Any, *, force: bool, **more: Any) -> int:
        seen.append((list(command), force, settings))
        return 3

    monkeypatch.setattr(record, "record_command", run)
    assert call("record", "-o", "r.zprof", "--time-steps", "4", *separator, *program)[0] == 3
    ((command, force, settings),) = seen
    assert (command, force) == (program, False)
    assert (settings.run, settings.time, settings.memory) == (str(Path("r.zprof").absolute()), 4, 2)
