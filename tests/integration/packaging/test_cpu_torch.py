"""On a machine without a GPU, make takes torch from an index of CPU builds if that answers."""

import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pinned import CONSTRAINTS

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="about machines without a GPU")

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / ".ci" / "install_cpu_torch.py"
_PINNED = next(
    line.partition("==")[2] for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch==")
)


def make_index(folder: Path, version: str) -> None:
    """Write an index with one empty wheel of torch."""
    project = folder / "torch"
    project.mkdir(parents=True)
    name, info = f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    with zipfile.ZipFile(project / name, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (project / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>')


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of an index with the CPU build of the pinned torch."""
    make_index(tmp_path / "index", f"{_PINNED}+cpu")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with pip and without torch, as make has it after it made its environment."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    return folder / "bin" / "python"


class Installed(NamedTuple):
    versions: list[str]
    lines: list[str]


def install(python: Path, index: str, folder: Path, tools: str = "") -> Installed:
    """Run the script as make does; return what it installed, and its lines for the user."""
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "PIP_TARGET": str(folder / "installed"),
        "PIP_CONFIG_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
    command = [str(python), str(SCRIPT), index, str(CONSTRAINTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    metadata = (folder / "installed").glob("torch-*.dist-info")
    versions = [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in metadata]
    return Installed(versions, (done.stdout + done.stderr).splitlines())


def test_the_build_of_the_index_is_installed(bare_python: Path, served: str, tmp_path: Path) -> None:
    assert install(bare_python, served, tmp_path) == ([f"{_PINNED}+cpu"], [])


def test_a_machine_with_a_gpu_is_left_to_the_installer(
    bare_python: Path, served: str, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    assert install(bare_python, served, tmp_path, str(tmp_path)) == ([], [])


def test_a_driver_without_a_gpu_is_no_gpu(bare_python: Path, served: str, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'No devices found.'\n")
    tool.chmod(0o755)
    assert install(bare_python, served, tmp_path, str(tmp_path)).versions == [f"{_PINNED}+cpu"]


@pytest.mark.parametrize("index", ["mute", "closed", "without the pinned version", "no address"])
def test_an_index_that_does_not_serve_is_passed_over_in_one_line(
    index: str, bare_python: Path, served: str, mute: str, tmp_path: Path
) -> None:
    addresses = {"mute": mute, "closed": "http://127.0.0.1:1", "no address": "nowhere"}
    if index not in addresses:
        (tmp_path / "index" / "torch" / "index.html").write_text("<a href='torch-1.0-py3-none-any.whl'></a>")
    installed = install(bare_python, addresses.get(index, served), tmp_path)
    assert installed.versions == []
    assert len(installed.lines) == 1


def test_make_asks_the_index_before_it_installs(tmp_path: Path) -> None:
    command = ["make", "-n", "demo", f"VENV={tmp_path / 'venv'}", "TORCH_INDEX=http://index.test/cpu"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    asked = [number for number, line in enumerate(lines) if "http://index.test/cpu" in line]
    installed = [number for number, line in enumerate(lines) if "pip install" in line]
    assert len(asked) == len(installed) == 1
    assert asked < installed
