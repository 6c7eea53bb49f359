"""What a child hears of a recording, and how it is forgotten again."""

import os
import sys
from pathlib import Path

import pytest

from zprof.integrations.program import record
from zprof.integrations.program.session import (
    STARTUP,
    VARIABLE,
    ProgramSettings,
    Session,
    child_environment,
    remove_recording,
)

SETTINGS = ProgramSettings(run="/x/run.zprof", skip=3, init=False, session="/y")


@pytest.mark.parametrize("before", [None, "", "/mine", f"/mine{os.pathsep}/yours"])
def test_a_child_hears_all_and_forgets_all(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    environment = child_environment(SETTINGS)
    assert ProgramSettings.from_json(environment[VARIABLE]) == SETTINGS
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(STARTUP)
    assert "" not in environment["PYTHONPATH"].split(os.pathsep), "an empty entry is the current folder"
    remove_recording(environment)
    assert environment.get("PYTHONPATH", "") == (before or "")
    assert VARIABLE not in environment


def test_one_process_records_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path)
    assert session.claim(0)
    assert session.claim(1)
    assert not session.claim(0)
    assert list(session.notes()) == ["another process trained as rank 0: only the first one was recorded"]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert session.claim(0), "a job that its launcher has started again"


def test_a_launcher_is_older_than_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    now_ns = time.time_ns()
    assert record.launcher_start_ns() >= now_ns, "nobody else can have begun"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert record.launcher_start_ns() < now_ns
    monkeypatch.setattr(record, "_PROC", Path("/nowhere"))
    assert record.launcher_start_ns() >= now_ns
    assert sys.platform == "linux"
