"""Recorded runs for all tests of commands, and one diagnosis for each of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import Call
from tests.support.schedules import MS, Spec, play, write
from zprof.cli import main
from zprof.diagnosis import diagnose as diagnosing
from zprof.model.report import Report
from zprof.run.reader import Run

RUNS = {
    "good": {},
    "again": {"seed": 2},
    "slow": {"forward_ns": 12 * MS},
    "chatty": {"units": 5},
    "wide": {"ranks": 3},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job recorded twice, slower, with more collectives, on more ranks; good.json is a baseline."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in RUNS.items():
        spec = Spec(**({"ranks": 2, "steps": 5} | changes))  # type: ignore[arg-type]
        write(folder / f"{name}.zprof", spec, play(spec))
    assert main(["baseline", "save", str(folder / "good.zprof"), "-o", str(folder / "good.json")]) == 0
    return folder


@pytest.fixture(scope="session")
def reports() -> dict[str, Report]:
    return {}


@pytest.fixture(scope="module")
def diagnosed_once(reports: dict[str, Report]) -> Iterator[None]:
    """For modules whose runs do not change once they are written."""
    real = diagnosing.diagnose

    def same(run: Run, *more: Any, **options: Any) -> Report:
        if more or options or not isinstance(run, Run):
            return real(run, *more, **options)
        key = f"{run.path.absolute()} {run.manifest}"
        if key not in reports:
            reports[key] = real(run)
        return reports[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnosing, "diagnose", same)
        yield


@pytest.fixture
def call(runs: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command and return code, stdout, stderr; RUNS in an argument is the folder of the runs."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument).replace("RUNS", str(runs)) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return called
