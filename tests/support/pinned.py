"""Whether a package has the version that constraints.txt pins."""

from importlib.metadata import version
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def is_pinned(package: str) -> bool:
    return f"\n{package}=={version(package)}\n" in CONSTRAINTS.read_text(encoding="utf-8")
