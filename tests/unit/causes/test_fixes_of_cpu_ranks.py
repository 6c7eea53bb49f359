"""What is advised to ranks on a CPU speaks of cores, threads and gloo, not of what only GPUs have."""

import ast
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import zprof.causes
from tests.support.diagnoses import base, diagnosed
from tests.support.rule_runs import run_of
from tests.support.tables import changed
from zprof.causes.cause import Need
from zprof.causes.fix import choose_fix, measure_sizes
from zprof.causes.host_fixes import choose_launch_fix, choose_wait_fix
from zprof.causes.lateness import REASON_TEXT, choose_late_fix
from zprof.causes.sharding_spans_nodes import CAUSE as sharding_spans_nodes
from zprof.model.findings import read_index
from zprof.simulator.job import CAUSES as PLANTS
from zprof.simulator.regular import plant

GPU_WORDS = re.compile(
    r"\bSMs?\b|NCCL|nccl|TF32|nvidia-smi|CUDA|\bcuda|cudnn|NVLink|thread block|pin_memory|pinned memory"
)
#: Why a rank can be late by itself.
REASONS = tuple(REASON_TEXT)
CAUSES = Path(zprof.causes.__file__).parent
#: Causes that are found on devices only, or in dumps of NCCL's flight recorder.
NEVER_ON_PROCESSORS = frozenset(
    entry.name for entry in read_index() if {Need.DEVICE, Need.HANG}.intersection(entry.needs)
)
#: Causes that only snapshots or the played step of a device show; what to record instead is no advice. Of
#: hangs, only answers of NCCL's RAS are named as such.
EXEMPT = frozenset(
    {"compute_blocks_comm", "latency_bound_collectives", "out_of_memory", "straggler_rank", "stuck"}
)


#: These fixes differ on a CPU; the others run with the slow tests.
DIFFERENT = frozenset({"comm_slows_compute", "offload_on_critical_path", "straggler_rank"})


@pytest.mark.parametrize(
    "cause",
    [pytest.param(each, marks=() if each in DIFFERENT else pytest.mark.slow) for each in sorted(PLANTS)],
)
def test_findings_of_cpu_ranks_advise_nothing_that_only_gpus_have(cause: str, tmp_path: Path) -> None:
    report = diagnosed(plant(base(1, "gloo"), cause, 2.0), tmp_path).report
    for finding in report.findings:
        assert not GPU_WORDS.findall(f"{finding.fix}\n{finding.disprove}"), finding.cause


def test_choosers_of_fixes_know_cpu_ranks() -> None:
    inference = run_of()
    inference = replace(inference, host=changed(inference.host, is_inference=True))
    texts = [choose_late_fix(run_of(), reason) for reason in REASONS]
    texts += [choose_wait_fix(inference), choose_launch_fix(inference)]
    assert sharding_spans_nodes.fix is not None
    texts += [choose_fix(run_of(), sharding_spans_nodes.fix, measure_sizes(run_of()))]
    assert not GPU_WORDS.findall("\n".join(texts))


@pytest.mark.parametrize("path", sorted(CAUSES.glob("*.py")), ids=lambda path: path.stem)
def test_a_cause_with_advice_for_gpus_asks_for_the_device(path: Path) -> None:
    """A new cause either has nothing that only GPUs have, or chooses, or cannot fire on a CPU."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words = [word for text in texts for word in GPU_WORDS.findall(text)]
    chooses = not names.isdisjoint({"is_on_cpu", "has_device"}) or "_GLOO_FIXES" in names
    assert not words or chooses or path.stem in NEVER_ON_PROCESSORS | EXEMPT, words
