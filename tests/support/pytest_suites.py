"""Test suites that use zprof's pytest plugin, run by a pytest within the one that tests them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/data/tui"
TIME_LIMIT_S = 300
_HEAD = f"""
import pytest

RUN = {str(RUNS / "zero3")!r}
"""


class Suite:
    """A folder with tests; ``run`` makes one file of them and runs it in this process.

    Each test's source has ``pytest`` and ``RUN``, a recorded run of two ranks.
    """

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        # Other plugins would be started once more within themselves.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        self.pytester = pytester
        self.folder = pytester.path

    def run(self, source: str, *options: str) -> pytest.RunResult:
        self.write(source)
        return self.again(*options)

    def write(self, source: str, name: str = "test_cost") -> None:
        (self.folder / f"{name}.py").write_text(_HEAD + source, encoding="utf-8")

    def again(self, *options: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(*self.arguments(*options))

    def alone(self, *options: str) -> pytest.RunResult:
        """In a process of its own."""
        return self.pytester.runpytest_subprocess(*self.arguments(*options), timeout=TIME_LIMIT_S)

    def arguments(self, *options: str) -> Sequence[str]:
        return ("-p", "zprof.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", *options)


def said_by_zprof(result: pytest.RunResult) -> list[str]:
    """The lines of the section of the terminal's summary."""
    lines = result.outlines
    begins = [place for place, line in enumerate(lines) if line.strip("=") == " zprof "]
    if not begins:
        return []
    rest = lines[begins[0] + 1 :]
    end = next(place for place, line in enumerate(rest) if line.startswith("==="))
    return rest[:end]
