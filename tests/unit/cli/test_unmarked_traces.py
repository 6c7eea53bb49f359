"""A trace without step marks is one window: no output says that its figures are those of a step."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.model.findings import Cause
from zprof.simulator.causes import plant
from zprof.simulator.plan import SimulationPlan, Vendor
from zprof.simulator.simulate import simulate

#: Without marks, steps are found by what the optimizer runs.
_STEP_MARKS = re.compile(r"ProfilerStep|Optimizer|adam|_foreach|addc", re.IGNORECASE)


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unmarked")
    plan = SimulationPlan(vendor=Vendor.NVIDIA, ranks=2, steps=3, units=4)
    simulate(plant(plan, Cause.LOW_BUS_BANDWIDTH, 2.0), folder)
    (folder / "truth.json").unlink()
    for path in folder.glob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [
            event for event in trace["traceEvents"] if not _STEP_MARKS.search(str(event.get("name")))
        ]
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


@pytest.mark.parametrize("command", ["report", "diagnose"])
@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_a_window_without_marks_is_no_step(call: Call, unmarked: Path, command: str, form: str) -> None:
    code, out, err = call(command, "-f", form, unmarked)
    assert code == 0, err
    assert "in the window" in out or form == "json"
    names = ("per step", "/step", "what the step", "a step is")
    assert [line for line in out.splitlines() if any(name in line for name in names)] == []
