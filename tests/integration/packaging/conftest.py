"""The wheel, built once from the sdist."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    done = subprocess.run(build, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))
