"""Collect the conditions under which a figure was measured."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def conditions() -> dict[str, Any]:
    """Return software versions, machine, its current load, and the commit."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "torch": version("torch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": load_average(),
        "omp_threads": 1,
    }


def load_average() -> list[float] | None:
    """Return the load over 1, 5 and 15 minutes, or None if the system does not report it."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def today() -> str:
    """Return the date for a file name."""
    return datetime.now(UTC).date().isoformat()


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _commit() -> str:
    """Return the hash, with ``+`` if the work tree has changes, or ``unknown`` outside of git."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        ended = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
