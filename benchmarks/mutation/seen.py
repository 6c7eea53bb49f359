"""Which test reads which lines of the rules, and how long it takes: told by one run of all of them.

The rules are loaded with a note around each comparison and each constant that they read.  That costs next to
nothing; ``sys.settrace`` makes a test of simulated ranks take several times as long.
"""

import ast
from collections import defaultdict
from collections.abc import Generator
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from benchmarks.mutation.found import constants_of

_NOTE = "__note__"
_Lines = set[tuple[str, int]]


class Watch(MetaPathFinder):
    """A plugin of pytest that notes what each test reads in the modules of a package.

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
        """By test and file."""
        told: dict[str, dict[str, list[int]]] = {}
        for test, own in self._own.items():
            told[test] = defaultdict(list)
            for file, line in own | self._shared[test.partition("::")[0]]:
                told[test][file].append(line)
        return told

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
    """Loads a module with notes in it."""

    def __init__(self, file: Path, note: Any) -> None:
        self._file, self._note = file, note

    def get_filename(self, fullname: str) -> str:
        return str(self._file.absolute())

    def get_data(self, path: Any) -> bytes:
        return self._file.read_bytes()

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.parse(data)
        noted = ast.fix_missing_locations(_Notes(set(constants_of(tree))).visit(tree))
        return compile(noted, path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        file, note = str(self._file), self._note

        def noted(line: int, value: Any) -> Any:
            note(file, line)
            return value

        setattr(module, _NOTE, noted)
        super().exec_module(module)


class _Notes(ast.NodeTransformer):
    """Around each comparison, and in functions around each constant of the module."""

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
