"""HTA reads a simulated trace as it reads a real one, and measures what is true of it."""

import json
from pathlib import Path

import pytest

from tests.support.command_calls import run_python
from zprof.simulator.ground_truth import write_job
from zprof.simulator.regular import make_job

_CODE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
files = {rank: os.path.join(sys.argv[1], f"rank{rank}.json.gz") for rank in (0, 1)}
analysis = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist()
compute = analysis.get_temporal_breakdown(visualize=False)["compute_time(us)"].tolist()
print(json.dumps([overlap, compute]))
"""


@pytest.mark.slow
def test_hta_finds_the_true_overlap_and_compute(tmp_path: Path) -> None:
    pytest.importorskip("hta")
    truth = write_job(make_job(ranks=2, units=3, prefetch="off"), tmp_path)
    overlap, compute = json.loads(run_python("-c", _CODE, str(tmp_path)).splitlines()[-1])
    for rank in (0, 1):
        steps = [step for step in truth.per_step if step.rank == rank]
        hidden, all_of_it = (
            sum(getattr(step, name) for step in steps) for name in ("overlapped_ns", "collective_ns")
        )
        assert overlap[rank] == pytest.approx(100 * hidden / all_of_it, abs=0.01)
        assert compute[rank] * 1000 == pytest.approx(sum(step.compute_ns for step in steps), abs=200)
