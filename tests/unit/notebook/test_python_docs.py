"""What docs/python.md and docs/python.ipynb show runs, and is what it says."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import zprof
from tests.support.executed_notebook import blocks_of, executed, run_code
from tests.support.pytest_suites import RUNS
from zprof.cli import main

DOCS = Path(__file__).parents[3] / "docs"
NOTEBOOK = DOCS / "python.ipynb"


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What pandas is asked to plot, whether or not matplotlib is there."""
    data: list[Any] = []
    backend = ModuleType(f"plots_{id(data)}")  # pandas keeps a backend by its name
    backend.plot = lambda values, kind, **options: data.append(values)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    with pd.option_context("plotting.backend", backend.__name__):
        yield data


def test_every_block_of_the_page_runs(
    plotted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.zprof").symlink_to(RUNS / "zero3")
    names: dict[str, Any] = {"baseline": zprof.load(RUNS / "ddp")}
    blocks = blocks_of((DOCS / "python.md").read_text(encoding="utf-8"))
    assert len(blocks) > 8
    for block in blocks:
        run_code(block, names)
    assert {path.name for path in tmp_path.iterdir()} == {"run.zprof", "step.svg", "report.html"}


def test_the_notebook_shows_what_its_cells_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ZPROF_UPDATE_GOLDEN=1`` writes the output anew; the difference is read by a person."""
    nbformat = pytest.importorskip("nbformat")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = "".join(line for cell in notebook["cells"] for line in cell["source"])
    (command,) = re.findall(r"^zprof (simulate .*)$", text, re.MULTILINE)
    assert main(command.split()) == 0
    made = notebook | {"cells": executed(notebook["cells"])}
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert made == json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(made))
    document = NOTEBOOK.read_text(encoding="utf-8")
    assert str(tmp_path) not in document
    assert "/home/" not in document
    assert len(document) < 400_000


def test_names_are_public_and_lazy() -> None:
    assert dir(zprof) == sorted(zprof.__all__)
    wanted = {"load", "record", "diagnose", "compare", "plan", "steps", "AnalysedRun", "Report"}
    assert wanted <= set(zprof.__all__)
    assert all(getattr(zprof, name) is not None for name in zprof.__all__)
