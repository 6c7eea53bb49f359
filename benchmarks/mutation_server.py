"""Import the causes and all their tests once, and fork for each mutant.

    python -m benchmarks.mutation_server SECONDS PATTERN... -- FILE...

It runs in a copy of the checkout, its working directory.  A first run of all tests records which test reads
which lines: the causes are loaded with a probe around each comparison and constant, which costs far less than
``sys.settrace``.  Each child replaces the code of the mutant's module in place (others hold its functions and
classes by now, so those objects stay the same) and runs the tests that read its line and take no longer than
SECONDS, the mirrored and the fastest first, until one fails.  Test files that match a PATTERN are left out.
Prints a JSON object per line: first which tests fail without a mutant, then each mutant.
"""

import ast
import gc
import json
import os
import pickle
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from time import perf_counter
from types import FunctionType
from typing import Any

import pytest

from benchmarks.mutations import Mutant, find_constants, find_mutants

_TESTS = ("tests/unit/causes", "tests/unit/diagnosis")
_SECONDS = 240
#: Cases of a test that is repeated for many values, such as one of noise with many seeds.
_CASES = 12
_QUIET = ("-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-r", "N")


@dataclass(frozen=True, kw_only=True)
class _TestRun:
    """Results of the run without mutants: lines by test and file, seconds, failed tests."""

    lines: Mapping[str, Mapping[str, list[int]]]
    seconds: Mapping[str, float]
    failed: frozenset[str]


class _Loop:
    """A pytest plugin that tries the mutants on the tests instead of running them once."""

    def __init__(
        self, files: Sequence[str], seen: _TestRun, limit_s: float, report: Callable[[Any], None]
    ) -> None:
        self._files, self._seen, self._limit_s, self._report = files, seen, limit_s, report

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        gc.freeze()
        for file in self._files:
            source = Path(file).read_bytes()
            for mutant in find_mutants(file, source):
                tests = _choose_tests(mutant, self._seen, self._limit_s)
                ended = _try_mutant(mutant, source, [items[test] for test in tests])
                self._report(asdict(mutant) | {"tests": len(tests), "ended": ended})
        return True


def main(limit_s: float, left_out: Sequence[str], files: Sequence[str]) -> None:
    """Record all tests of the files' folders, then try each mutant."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # hides pytest's own output

    def report(row: Mapping[str, Any]) -> None:
        output.write(json.dumps(row) + "\n")
        output.flush()

    wanted = [*_QUIET, *(f"--ignore-glob={pattern}" for pattern in left_out), *_TESTS]
    seen = _watch_tests(wanted)
    report({"red": sorted(seen.failed), "tests": len(seen.lines), "seconds": sum(seen.seconds.values())})
    pytest.main(wanted, plugins=[_Loop(files, seen, limit_s, report)])


def _watch_tests(wanted: Sequence[str]) -> _TestRun:
    read, write = os.pipe()

    def watch() -> int:
        plugin = Watch("zprof.causes")
        sys.meta_path.insert(0, plugin)
        pytest.main([*wanted], plugins=[plugin])
        with os.fdopen(write, "wb") as out:
            pickle.dump((plugin.lines(), dict(plugin.seconds), frozenset(plugin.failed)), out)
        return 0

    child = _fork(watch, 1800)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines, seconds, failed = pickle.load(pipe)
    os.waitpid(child, 0)
    return _TestRun(lines=lines, seconds=seconds, failed=failed)


def _choose_tests(mutant: Mutant, seen: _TestRun, limit_s: float) -> list[str]:
    """Return the tests that read the mutant's line, those of the mirrored file first, then the fastest."""
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


def _try_mutant(mutant: Mutant, source: bytes, items: Sequence[pytest.Item]) -> str:
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

    _, status = os.waitpid(_fork(run), 0)
    if os.WIFSIGNALED(status):
        return "killed: no end"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def _fork(work: Callable[[], int], seconds: int = _SECONDS) -> int:
    """Fork a child that runs ``work`` silently and exits with its code."""
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


_NOTE = "__note__"
_Lines = set[tuple[str, int]]


class Watch(MetaPathFinder):
    """A pytest plugin that records what each test reads in the modules of a package.

    What is read while a test is set up counts for all tests of its file: they may share a fixture.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._now: _Lines = set()
        self._shared: dict[str, _Lines] = defaultdict(set)
        self._own: dict[str, _Lines] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        file = Path(*fullname.split(".")).with_suffix(".py")
        if not fullname.startswith(self._package) or not file.is_file():
            return None
        return spec_from_loader(fullname, _Noting(file, self._now_read), origin=str(file))

    def _now_read(self, file: str, line: int) -> None:
        self._now.add((file, line))

    def lines(self) -> dict[str, dict[str, list[int]]]:
        """Return the lines by test and file."""
        by_test: dict[str, dict[str, list[int]]] = {}
        for test, own in self._own.items():
            by_test[test] = defaultdict(list)
            for file, line in own | self._shared[test.partition("::")[0]]:
                by_test[test][file].append(line)
        return by_test

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._watched(item.nodeid, self._shared[item.nodeid.partition("::")[0]])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._watched(item.nodeid, self._own.setdefault(item.nodeid, set()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def _watched(self, test: str, into: _Lines) -> Generator[None, None, None]:
        self._now, began = into, perf_counter()
        yield
        self._now = set()
        self.seconds[test] += perf_counter() - began


class _Noting(SourceLoader):
    """Load a module with probes in it."""

    def __init__(self, file: Path, note: Any) -> None:
        self._file, self._note = file, note

    def get_filename(self, fullname: str) -> str:
        return str(self._file.absolute())

    def get_data(self, path: Any) -> bytes:
        return self._file.read_bytes()

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.parse(data)
        noted = ast.fix_missing_locations(_Notes(set(find_constants(tree))).visit(tree))
        return compile(noted, path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        file, note = str(self._file), self._note

        def noted(line: int, value: Any) -> Any:
            note(file, line)
            return value

        setattr(module, _NOTE, noted)
        super().exec_module(module)


class _Notes(ast.NodeTransformer):
    """Add a probe around each comparison, and in functions around each constant of the module."""

    def __init__(self, constants: set[str]) -> None:
        self._constants = constants

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node  # its annotation stays as it is

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._noted(self.generic_visit(node), node.lineno)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._constants or not isinstance(node.ctx, ast.Load):
            return node
        return self._noted(node, node.lineno)

    def _noted(self, node: ast.AST, line: int) -> ast.AST:
        name = ast.Name(_NOTE, ast.Load())
        call = ast.Call(func=name, args=[ast.Constant(line), node], keywords=[])  # type: ignore[list-item]
        return ast.copy_location(call, node)


def put_in_place(path: str, source: bytes) -> None:
    """Make the module of that file behave as ``source``."""
    name = path.removesuffix(".py").replace("/", ".")
    module = sys.modules[name]
    changed: dict[str, Any] = {"__name__": name, "__file__": module.__file__}
    exec(compile(source, path, "exec", dont_inherit=True), changed)
    for key, new in changed.items():
        old = module.__dict__.get(key)
        if key.startswith("__") or getattr(new, "__module__", name) != name:
            continue
        if isinstance(old, type):
            _recode_class(old, new)
        elif callable(old):
            _recode(old, new)
        elif type(old) is type(new) and old != new:
            setattr(module, key, new)
            _tell_others(key, old, new)


def _tell_others(key: str, old: Any, new: Any) -> None:
    """Update the modules that imported the constant by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zprof.") and module.__dict__.get(key) is old:
            setattr(module, key, new)


def _recode_class(old: type, new: type) -> None:
    for key, part in vars(new).items():
        _recode(vars(old).get(key), part)


def _recode(old: Any, new: Any) -> None:
    old, new = (getattr(part, "fget", None) or getattr(part, "__func__", None) or part for part in (old, new))
    if hasattr(old, "cache_clear"):
        old.cache_clear()
        old, new = old.__wrapped__, new.__wrapped__
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__ = new.__code__
        old.__defaults__, old.__kwdefaults__ = new.__defaults__, new.__kwdefaults__


if __name__ == "__main__":
    cut = sys.argv.index("--")
    main(float(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1 :])
