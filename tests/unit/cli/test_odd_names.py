"""Files and folders whose names are not UTF-8 (archives of older systems): every command reads them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.command_calls import Call
from tests.support.flight_dumps import make_dump, to_json
from tests.support.trace_folders import write_ranks

ODD = os.fsdecode(b"caf\xe9 \xff")
COMMANDS = [
    "diagnose RUN",
    "diagnose RUN -f json",
    "diagnose RUN --baseline TRACES",
    "report TRACES -f html",
    "report RUN -o OUT.html -o OUT.md -o OUT.json",
    "compare RUN TRACES -f json",
    "check RUN --baseline RUN -f json",
    "check RUN --step-time 100000ms --junit OUT.xml --sarif OUT.sarif",
    "import TRACES -o OUT.zprof",
    "export RUN --perfetto OUT.json",
    "bundle RUN -o OUT.zip",
    "baseline save RUN -o OUT.json",
    "whatif RUN --bandwidth x2",
    "verify TRACES",
    "tui TRACES",
    "hang DUMPS -f json",
    "simulate -o OUT --ranks 2 --steps 2",
]


@pytest.fixture
def folder(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ODD / "cache"))
    folder = tmp_path / ODD
    shutil.copytree(runs / "good.zprof", folder / f"RUN{ODD}")
    write_ranks(folder / f"TRACES{ODD}", 2)
    (folder / f"DUMPS{ODD}").mkdir()
    for rank in range(2):
        (folder / f"DUMPS{ODD}" / f"{ODD}_rank{rank}.json").write_bytes(to_json(make_dump()))
    (folder / f"TRACES{ODD}" / "rank0.json").rename(folder / f"TRACES{ODD}" / f"{ODD}_rank0.json")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_is_not_utf8_is_read_and_printed_as_escapes(
    command: str, folder: Path, call: Call
) -> None:
    words = [
        str(folder / word.replace(name, f"{name}{ODD}")) if (name := word.split(".")[0]).isupper() else word
        for word in command.split()
    ]
    code, out, err = call(*words)
    assert code in (0, 1, 3), err
    (out + err).encode()
    if "json" in words:
        json.loads(out)
