"""Which part may import which, and which may import torch, read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_calls import run_python

ROOT = Path(__file__).parents[2]
TOP_LEVEL = ("collectors", "reports", "reference_engine")
#: What each part may import, beside itself: the table of docs/architecture.md.
ALLOWED = {
    "base": "",
    "process": "base",
    "model": "base",
    "run": "model base process",
    "cache": "run model base process",
    "analysis": "run model base process",
    "step": "analysis run model base process",
    "planner": "step analysis run model base process",
    "causes": "step analysis run model base process",
    "diagnosis": "causes step analysis run model base process",
    "query": "analysis run model base process",
    "checks": "reports analysis run model base process",
    "simulator": "",
    "reports": "model base",
    "collectors": "cache run model base process",
    "reference_engine": "",
    "integrations": "reference_engine collectors reports checks diagnosis causes planner analysis cache run "
    "model base process",
    "testing": "notebook integrations collectors checks diagnosis analysis run model base process",
    "pytest_plugin": "testing model base",
    "tui": "integrations collectors reports checks diagnosis planner analysis cache run model base process",
    "notebook": "cli integrations collectors reports checks query diagnosis planner analysis cache run model "
    "base process",
    "agents": "notebook query reports model base",
    "cli": "agents tui integrations collectors simulator reference_engine reports checks query diagnosis "
    "planner step analysis cache run model base process",
}
MAY_IMPORT_TORCH = {"collectors", "integrations", "reference_engine"}
#: Where users are given tables as DataFrames; an answer needs none, and would start 0.6 s later.
MAY_IMPORT_PANDAS = {
    "zprof/analysis/columns.py",
    "zprof/notebook/run.py",
    "zprof/run/reader.py",
    "zprof/run/table_reader.py",
}
CUDA_KERNEL = ROOT / "reference_engine/optimizer/cuda"


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@cache
def all_imports() -> list[tuple[str, Path, str]]:
    """Part, file and imported name."""
    found = []
    for part in ALLOWED:
        folder = ROOT / part if part in TOP_LEVEL else ROOT / "zprof" / part
        paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        assert paths, part
        found += [(part, path, name) for path in paths for name in imports_of(path)]
    return found


def is_outside(part: str, path: Path, name: str) -> bool:
    """Whether a part may not import that name."""
    top, *rest = name.split(".")
    if top in {*TOP_LEVEL, "benchmarks", "tests"}:
        return True
    if top == "zprof":
        return bool(rest) and rest[0] not in {"version", part, *ALLOWED[part].split()}
    if top == "torch":
        return part not in MAY_IMPORT_TORCH
    if part == "reference_engine":
        return top not in sys.stdlib_module_names and not (top == "cuda" and path.parent == CUDA_KERNEL)
    return part in {"base", "model"} and top not in {*sys.stdlib_module_names, "msgspec"}


def test_data_flows_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for part, path, name in all_imports()
        if is_outside(part, path, name)
    ]
    assert not wrong, "\n".join(wrong)


def test_readers_know_nothing_of_the_recorder() -> None:
    """A file is read the same way whoever wrote it."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for part, path, name in all_imports()
        if part == "collectors" and "read" in path.relative_to(ROOT).parts and ".collectors.record" in name
    ]
    assert not wrong, "\n".join(wrong)


def test_pandas_is_for_tables_that_a_user_is_given() -> None:
    found = {
        path.relative_to(ROOT).as_posix() for _, path, name in all_imports() if name.split(".")[0] == "pandas"
    }
    assert found == MAY_IMPORT_PANDAS


def test_every_folder_has_a_rule() -> None:
    folders = {
        path.name for path in (ROOT / "zprof").iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    assert folders - set(TOP_LEVEL) <= set(ALLOWED)


def test_programs_call_main_last() -> None:
    """Under ``python -m``, names that are defined below the call do not exist yet."""
    wrong = []
    for path in {*(path for _, path, _ in all_imports()), *(ROOT / "benchmarks").rglob("*.py")}:
        source = path.read_text(encoding="utf-8")
        if "__main__" in source:
            body = ast.parse(source).body
            tests = [ast.unparse(node.test) if isinstance(node, ast.If) else "" for node in body]
            wrong += [path] if "__name__ == '__main__'" in tests[:-1] else []
    assert not wrong


@pytest.mark.parametrize("folder", TOP_LEVEL)
def test_a_top_level_folder_refuses_its_bare_name(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"import zprof.{folder}, not {folder}" in done.stderr


def test_reading_starts_without_heavy_packages() -> None:
    code = (
        "import sys, zprof, zprof.reports.formats; zprof.Run, zprof.load, zprof.diagnose, zprof.Report;"
        "print(sorted({'torch', 'hta', 'textual'} & set(sys.modules)))"
    )
    assert run_python("-c", code, cwd=ROOT).strip() == "[]"
