"""Install torch's CPU build from an index of CPU builds, if this machine has no GPU and the index answers.

``python .ci/install_cpu_torch.py INDEX CONSTRAINTS``. PyPI's torch brings CUDA, five gigabytes that a machine
without a GPU never uses. A preference and never an obstacle: the exit code is 0 in any case, with at most one
line on stderr; what installs zprof afterwards takes the torch that is there, or finds one itself. pip's own
configuration counts as everywhere (proxy, certificates, wheels on disk).
"""

import subprocess
import sys
import threading
import urllib.request
from importlib.util import find_spec
from pathlib import Path

#: An index that has not answered by then is taken for one that cannot be reached.
_PROBE_TIMEOUT_S = 3.0
#: The driver's tool answers at once, or hangs with a sick driver.
_DRIVER_TIMEOUT_S = 10.0
#: pip's own patience with an index that answered once.
_PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--timeout", "15", "--retries", "1")


def main(index: str, constraints: str) -> None:
    """Install torch alone, without its dependencies, which PyPI has in the pinned versions."""
    if find_spec("torch") or has_gpu():
        return
    if not answers(f"{index.rstrip('/')}/torch/"):
        _print_fallback(f"no answer from {index}")
        return
    command = [sys.executable, "-m", "pip", "install", *_PIP_OPTIONS, "--no-deps"]
    command += ["--index-url", index, "--constraint", constraints, "torch"]
    installed = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, text=True
    )
    if installed.returncode != 0:
        reasons = [line for line in installed.stderr.splitlines() if line.startswith("ERROR")]
        _print_fallback(f"{index} has no torch for this machine ({(reasons or ['pip failed'])[-1]})")


def has_gpu() -> bool:
    """Return whether the NVIDIA driver has a device file or lists a GPU."""
    if Path("/dev/nvidia0").exists():
        return True
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, timeout=_DRIVER_TIMEOUT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def answers(url: str) -> bool:
    """Return whether the URL is served; a name that is never resolved or a slow server counts as no."""
    served = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S) as response:
                response.read(1)
            served.set()
        except (OSError, ValueError):  # refused, no such name, not found, certificate, no URL
            pass

    # a thread, because no timeout of a socket bounds the lookup of a name
    probe = threading.Thread(target=ask, daemon=True)
    probe.start()
    probe.join(_PROBE_TIMEOUT_S)
    return served.is_set()


def _print_fallback(reason: str) -> None:
    print(f"torch: {reason}; the installer takes the build that it finds", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
