"""The house: who may import whom, and who may import torch (read from the source, nothing is run)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "model": ROOT / "zprof/model",
    "run": ROOT / "zprof/run",
    "analysis": ROOT / "zprof/analysis",
    "replay": ROOT / "zprof/replay",
    "planner": ROOT / "zprof/planner",
    "rules": ROOT / "zprof/rules",
    "checks": ROOT / "zprof/checks",
    "simulator": ROOT / "zprof/simulator",
    "tui": ROOT / "zprof/tui",
    "cli": ROOT / "zprof/cli",
    "integrations": ROOT / "zprof/integrations",
    "testing": ROOT / "zprof/testing",
    "pytest_plugin": ROOT / "zprof/pytest_plugin.py",
    "collectors": ROOT / "collectors",
    "reports": ROOT / "reports",
    "reference_engine": ROOT / "reference_engine",
}
ALLOWED = {
    "model": {"model"},
    "run": {"run", "model"},
    "analysis": {"analysis", "run", "model"},
    "replay": {"replay", "analysis", "run", "model"},
    "planner": {"planner", "replay", "analysis", "run", "model"},
    "rules": {"rules", "planner", "replay", "analysis", "run", "model"},
    "checks": {"checks", "rules", "analysis", "run", "model"},
    "simulator": {"simulator", "model"},
    "reports": {"reports", "model"},
    "collectors": {"collectors", "run", "model"},
    "reference_engine": {"reference_engine"},
    "integrations": {
        "integrations",
        "reference_engine",
        "collectors",
        "reports",
        "checks",
        "rules",
        "planner",
        "analysis",
        "run",
        "model",
    },
    "testing": {"testing", "integrations", "collectors", "checks", "rules", "analysis", "run", "model"},
    "pytest_plugin": {"testing", "model"},
    "tui": {"tui", "integrations", "reports", "checks", "rules", "planner", "analysis", "run", "model"},
    "cli": {
        "cli",
        "tui",
        "integrations",
        "simulator",
        "reference_engine",
        "reports",
        "checks",
        "rules",
        "planner",
        "analysis",
        "run",
        "model",
    },
}
MAY_IMPORT_TORCH = {"collectors", "integrations", "reference_engine"}
STANDARD_LIBRARY_ONLY = {"model"}
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
    return [
        (part, path, name)
        for part, folder in FOLDERS.items()
        for path in (sorted(folder.rglob("*.py")) if folder.is_dir() else [folder])
        for name in imports_of(path)
    ]


def test_every_folder_has_code() -> None:
    seen = {part for part, _, _ in all_imports()}
    assert seen >= set(FOLDERS) - {"model"}


def test_data_flows_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for part, path, name in all_imports()
        if name.startswith("zprof.")
        and (target := name.split(".")[1]) != "version"
        and target not in ALLOWED[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_programs_call_main_last() -> None:
    """Under ``python -m``, names that are defined below the call do not exist yet."""
    wrong = []
    for path in (*(path for _, path, _ in all_imports()), *(ROOT / "benchmarks").rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        guards = [node for node in body if ast.unparse(node).startswith("if __name__ == '__main__':")]
        wrong += [str(path.relative_to(ROOT)) for node in guards if node is not body[-1]]
    assert not wrong


def test_import_names_are_never_bare() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for _, path, name in all_imports()
        if name.split(".")[0] in {"collectors", "reports", "reference_engine"}
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_stays_in_the_three_folders() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for part, path, name in all_imports()
        if name.split(".")[0] == "torch" and part not in MAY_IMPORT_TORCH
    ]
    assert not wrong, "\n".join(wrong)


def test_the_engine_knows_nothing_of_zprof() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for part, path, name in all_imports()
        if part == "reference_engine"
        and name.split(".")[0] not in sys.stdlib_module_names | {"torch"}
        and not name.startswith("zprof.reference_engine")
        and not (name.split(".")[0] == "cuda" and path.parent == CUDA_KERNEL)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_words_need_the_standard_library_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for part, path, name in all_imports()
        if part in STANDARD_LIBRARY_ONLY
        and name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith("zprof.model")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["collectors", "reports", "reference_engine"])
def test_a_top_level_folder_refuses_its_bare_name(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"import zprof.{folder}, not {folder}" in done.stderr


@pytest.mark.parametrize(
    "statement",
    ["import zprof; zprof.Run, zprof.load, zprof.diagnose, zprof.Report", "import zprof.reports.formats"],
)
def test_reading_starts_without_heavy_packages(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted({{'torch', 'hta', 'textual'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
