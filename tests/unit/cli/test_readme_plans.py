"""What the README says that ``zprof plan`` prints is what it prints."""

import re
import shlex
from pathlib import Path

import pytest

from zprof.cli import main

README = Path(__file__).parents[3] / "README.md"
SHOWN = re.findall(r"```\n\$ zprof (plan .*?)\n(.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_shows_both_questions() -> None:
    assert [command.split()[1] for command, _ in SHOWN] == ["--params", "--preset"]


@pytest.mark.parametrize(("command", "text"), SHOWN)
def test_each_shown_part_is_printed(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    for part in text.split("\n  ...\n"):
        assert part.strip("\n") in printed
