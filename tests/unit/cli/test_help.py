"""Help: groups, next steps, readable at 80 columns; ``zprof help TOPIC`` is what it stands for."""

import shlex
from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.cli.registry import COMMANDS, Group


def test_without_arguments_it_prints_help_and_what_to_do_next(call: Call) -> None:
    code, out, err = call()
    assert (code, err) == (0, "")
    assert call("--help") == call("help") == (code, out, err)
    for step in ("zprof diagnose RUN", "zprof record -o", "zprof demo"):
        assert f"\n  {step}" in out


def test_each_command_is_in_its_group(call: Call) -> None:
    _, out, _ = call("--help")
    sections = {part.split(":\n")[0]: part for part in out.split("\n\n")}
    assert list(sections)[2 : 2 + len(Group)] == [group.value for group in Group]
    for entry in COMMANDS:
        assert f"\n  {entry.name} " in sections[entry.group.value]
        assert entry.summary in sections[entry.group.value]


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS])
def test_help_of_a_command_is_readable_at_80_columns(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("help", name)
    assert (code, err) == (0, "")
    assert call(name, "--help") == (code, out, err)
    assert [line for line in out.splitlines() if len(line) > 80 and not line.startswith("  zprof ")] == []


def test_one_next_command_is_named_by_whatever_wrote_a_run(call: Call, tmp_path: Path) -> None:
    small = ("--ranks", "1", "--steps", "1", "--units", "2")
    _, _, simulated = call("simulate", "-o", tmp_path / "traces", *small)
    _, _, imported = call("import", tmp_path / "traces", "-o", tmp_path / "it's a.zprof")
    for notes, run in ((simulated, tmp_path / "traces"), (imported, tmp_path / "it's a.zprof")):
        program, command, argument = shlex.split(notes.splitlines()[-1].partition("next: ")[2])
        assert (program, command, Path(argument)) == ("zprof", "diagnose", run)
