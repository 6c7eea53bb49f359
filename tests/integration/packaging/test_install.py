"""The wheel, built from the sdist, works in a folder that holds hostile packages of the same names."""

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.command_calls import run_command

MAX_WHEEL_BYTES = 3_000_000
HOSTILE = "raise SystemExit('the hostile package was imported')\n"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run_command(*pip, "--target", str(site), str(wheel), cwd=site)
    return site


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    for name in ("collectors", "reports", "reference_engine", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(HOSTILE)
    return tmp_path


def test_the_wheel_holds_the_real_folders_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    for wanted in (
        "zprof/collectors/record/recorder.py",
        "zprof/reports/__init__.py",
        "zprof/reference_engine/__init__.py",
        "zprof/findings/ZP301.md",
        "zprof/reports/templates/page.html.j2",
        "zprof/reports/templates/style.css",
        "zprof/reports/templates/page.js",
    ):
        assert wanted in names
    assert not [name for name in names if name.split("/")[0] in {"collectors", "reports", "tests"}]


def test_the_files_to_upload_are_small_and_hold_no_test_data(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    assert sdist.stat().st_size <= MAX_WHEEL_BYTES
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "docs/findings/ZP301.md" in names, "the wheel is built from it"
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/pictures/"))]
    assert not [name for name in names if name.endswith((".png", ".gif", ".parquet", ".pickle", ".zprof"))]


def test_the_package_runs_beside_hostile_packages(installed: Path, hostile_folder: Path) -> None:
    code = (
        "import zprof, zprof.collectors.record.schedule, zprof.reports, zprof.reference_engine;"
        "print(zprof.__file__); print(zprof.steps(time=3).time)"
    )

    def beside(*arguments: str) -> str:
        return run_command(*arguments, cwd=hostile_folder, PYTHONPATH=str(installed))

    file, steps = beside(sys.executable, "-c", code).split()
    assert Path(file).is_relative_to(installed)
    assert steps == "3"
    script = beside(str(installed / "bin/zprof"), "--version")
    assert script == beside(sys.executable, "-m", "zprof", "--version")
    assert beside(sys.executable, "-m", "zprof", "explain", "ZP301").startswith("ZP301 straggler_rank")
