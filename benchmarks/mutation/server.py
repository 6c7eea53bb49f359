"""A process that has the rules and all their tests imported, and forks for each mutant.

    python -m benchmarks.mutation.server SECONDS PATTERN... -- FILE...

in a copy of the checkout, its working directory.  The child puts the mutant in place and runs the tests that
read its line and take no longer than SECONDS, the mirrored and the fastest first, until one turns red.  Test
files that match a PATTERN are left out.  Prints a JSON object a line: first which tests are red by
themselves, then each mutant.
"""

import gc
import json
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation.found import Mutant, mutants_of
from benchmarks.mutation.place import put_in_place
from benchmarks.mutation.seen import Watch

_RULES, _TESTS = Path("zprof/rules"), Path("tests/unit/rules")
_SECONDS = 240
#: Of a test that is repeated for many values, as one of noise with many seeds.
_CASES = 12
_QUIET = ("-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-r", "N")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What the run without mutants told: lines by test and file, seconds, red tests."""

    lines: Mapping[str, Mapping[str, list[int]]]
    seconds: Mapping[str, float]
    failed: frozenset[str]


class _Loop:
    """A plugin of pytest that, instead of running the tests once, tries the mutants on them."""

    def __init__(
        self, files: Sequence[str], seen: _Seen, limit_s: float, tell: Callable[[Any], None]
    ) -> None:
        self._files, self._seen, self._limit_s, self._tell = files, seen, limit_s, tell

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        gc.freeze()
        for file in self._files:
            source = Path(file).read_bytes()
            for mutant in mutants_of(file, source):
                tests = _tests_of(mutant, self._seen, self._limit_s)
                ended = _try(mutant, source, [items[test] for test in tests])
                self._tell(asdict(mutant) | {"tests": len(tests), "ended": ended})
        return True


def main(limit_s: float, left_out: Sequence[str], files: Sequence[str]) -> None:
    """Watch all tests of the rooms, then try each mutant."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pytest's own words

    def tell(row: Mapping[str, Any]) -> None:
        told.write(json.dumps(row) + "\n")
        told.flush()

    rooms = sorted({str(_room(file)) for file in files})
    wanted = [*_QUIET, *(f"--ignore-glob={pattern}" for pattern in left_out), *rooms]
    seen = _watched(wanted)
    tell({"red": sorted(seen.failed), "tests": len(seen.lines), "seconds": sum(seen.seconds.values())})
    pytest.main(wanted, plugins=[_Loop(files, seen, limit_s, tell)])


def _room(file: str) -> Path:
    """Where its tests are: of what all rooms use, everywhere."""
    room = Path(file).relative_to(_RULES).parts
    if len(room) > 1:
        return _TESTS / room[0]
    mirror = _TESTS / f"test_{room[0]}"
    return mirror if mirror.exists() else _TESTS


def _watched(wanted: Sequence[str]) -> _Seen:
    read, write = os.pipe()

    def watch() -> int:
        plugin = Watch("zprof.rules")
        sys.meta_path.insert(0, plugin)
        pytest.main([*wanted], plugins=[plugin])
        with os.fdopen(write, "wb") as out:
            pickle.dump((plugin.lines(), dict(plugin.seconds), frozenset(plugin.failed)), out)
        return 0

    child = _forked(watch, 1800)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        lines, seconds, failed = pickle.load(told)
    os.waitpid(child, 0)
    return _Seen(lines=lines, seconds=seconds, failed=failed)


def _tests_of(mutant: Mutant, seen: _Seen, limit_s: float) -> list[str]:
    """Those that read its line, of the mirrored file first, then the fastest first."""
    wanted, stem = set(mutant.lines), Path(mutant.path).stem

    def sees(test: str) -> bool:
        lines = seen.lines[test].get(mutant.path, ())
        return bool(wanted.intersection(lines) if wanted else lines)

    green = [test for test in seen.lines if test not in seen.failed and seen.seconds[test] <= limit_s]
    cases: Counter[str] = Counter()
    few = []
    for test in filter(sees, green):
        cases[test.partition("[")[0]] += 1
        if cases[test.partition("[")[0]] <= _CASES:
            few.append(test)
    return sorted(few, key=lambda test: (seen.seconds[test] > 1, stem not in test, seen.seconds[test]))


def _try(mutant: Mutant, source: bytes, items: Sequence[pytest.Item]) -> str:
    if not items:
        return "not tested"

    def run() -> int:
        put_in_place(mutant.path, mutant.applied(source))
        for place, item in enumerate(items):
            following = items[place + 1] if place + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return 1
        return 0

    _, status = os.waitpid(_forked(run), 0)
    if os.WIFSIGNALED(status):
        return "killed: no end"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def _forked(work: Callable[[], int], seconds: int = _SECONDS) -> int:
    """A child that does it, says nothing, and ends with its code."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        code = work()
    finally:
        os._exit(code)


if __name__ == "__main__":
    cut = sys.argv.index("--")
    main(float(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1 :])
