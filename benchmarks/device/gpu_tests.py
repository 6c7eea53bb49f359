"""Run the suite tests/gpu and count its outcomes."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.device.checks import CheckFailed
from benchmarks.steps.launch import ROOT


def measure() -> dict[str, Any]:
    """Return tests, failures and skips, with the names of failed tests and the reasons of skips.

    Raises:
        CheckFailed: a test failed, or none ran.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/gpu", f"--junitxml={path}"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not path.exists():
            raise CheckFailed(f"pytest wrote no result: {ended.stdout[-200:]} {ended.stderr[-200:]}")
        figures = count_outcomes(path.read_text())
    if figures["failed"] or not figures["passed"]:
        raise CheckFailed(f"{len(figures['failed'])} failed, {figures['passed']} passed", figures)
    return figures


def count_outcomes(junit: str) -> dict[str, Any]:
    """Count the outcomes in pytest's JUnit file."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    failed = [_name(case) for case in cases if _has(case, "failure") or _has(case, "error")]
    skipped = {_name(case): case.find("skipped") for case in cases if _has(case, "skipped")}
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": failed,
        "skipped": {name: "" if why is None else why.get("message", "") for name, why in skipped.items()},
    }


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _has(case: ElementTree.Element, what: str) -> bool:
    return case.find(what) is not None
