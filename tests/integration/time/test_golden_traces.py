"""Real traces of other people: the whole trace against an exact sweep, known values, and HTA."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.interval_oracle import LIBRARIES, Totals, totals, work_of
from tests.support.real_traces import TRACES
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.errors import BadInput
from zprof.model.time import LEDGER_TERMS, RankTime, WindowPolicy
from zprof.run.reader import load

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not here")

SAMPLED = "hta_trace_filter_2of128/sampled_rank-{}"
#: Communication, compute, memory, overlap, exposed, span and idle in microseconds, as far as was printed.
GOLDEN = {
    "hta_nccl_data": "46876.5 115655.8 2653.5 7317.0 39559.5 660551.0 503051.0",
    "hta_df_index_resolver": "357343 620516 22754 0 357343 1732965 732352",
    SAMPLED.format(0): "396199 210320 1325 59216 336983 1222847 675191",
    SAMPLED.format(1): "379053 271973 16504 75530 303523 1231186 651136",
    "tracelens_b200_eager": "2141.5 8652.1 802.8 0 2141.5 84487.2 72890.7",
    # as doubles, which hold its times to 0.25 us, compute is 468173.2 and memory 4289.2
    "hta_ns_resolution_rank-0.pt.trace": "0 468153.6 4300.8 0 0 480029.2 7574.7",
    "hta_cuda_event_sync_multi_stream": "0 369 3 0 0 19506 19134",
    "hta_mi250_minitoy": "0 110.9 38.2 0 0 8911.9 8762.8",
    "tracelens_mi210_gpu_only": "0 5343.4 0 0 0 5979.5 636.1",
    "tracelens_mi300_bert_small": "0 388.3 2.4 0 0 3496.0 3105.2",
    "tracelens_h100_bert_small": "0 307.2 2.2 0 0 3907.8 3598.4",
    "tracelens_h100_qwen_0.5b": "0 45432.7 214.6 0 0 49652.8 4005.5",
    "tracelens_vllm_graph_execution": "0 10674.5 43.2 0 0 10743.2 25.5",
    "kineto_2021_resnet50.pt.trace": "0 591532 12026 0 0 996477 392919",
}
#: HTA's own answers differ where it reads more than work, or fails.
COMPARED = ("hta_nccl_data", SAMPLED.format(0), SAMPLED.format(1))
HTA = """
import json, os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
found = {}
for name in sys.argv[1:]:
    traces = TraceAnalysis(
        trace_files={0: name}, trace_dir=os.path.dirname(name), include_last_profiler_step=True
    )
    overlap = traces.get_comm_comp_overlap(visualize=False)
    times = traces.get_temporal_breakdown(visualize=False)
    found[name] = {**overlap.iloc[0].to_dict(), **times.iloc[0].to_dict()}
print(json.dumps(found, default=float))
"""


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copy(TRACES / f"{name}.json.gz", folder))


def analysed(path: Path, folder: Path, policy: WindowPolicy = WindowPolicy.TRACE) -> TimeAnalysis:
    return analyse_time(load(import_paths([path], folder / "x.zprof").run), policy)


def as_totals(entry: RankTime) -> Totals:
    return Totals(
        comm=entry.collective_ns,
        compute=entry.compute_ns,
        mem=entry.memcpy_ns,
        overlap=entry.overlapped_ns,
        exposed=entry.exposed_wait_ns + entry.exposed_transfer_ns,
        span=entry.wall_ns,
        idle=entry.idle_ns + entry.unexplained_ns,
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_a_real_trace_equals_the_sweep_and_what_is_known(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path)
    want = totals(work_of(path))
    printed = (want.comm, want.compute, want.mem, want.overlap, want.exposed, want.span, want.idle)
    for value, text in zip(printed, GOLDEN[name].split(), strict=True):
        assert f"{value / 1000:.{len(text.partition('.')[2])}f}" == text
    analysis = analysed(path, tmp_path)
    (entry,) = analysis.time.per_rank
    assert as_totals(entry) == want
    exposed = analysis.collectives["exposed_wait_ns"] + analysis.collectives["exposed_transfer_ns"]
    assert exposed.sum() == want.exposed
    assert entry.wall_ns == sum(getattr(entry, term) for term in LEDGER_TERMS)


def test_reductions_in_shared_memory_are_communication(tmp_path: Path) -> None:
    """73 kernels of 10,772 us of "compute" are ``multimem_all_reduce_kernel``: one GPU waits for others."""
    work = work_of(copied("tracelens_b200_eager", tmp_path), LIBRARIES)
    without = totals(work)
    assert (without.comm, without.compute, without.idle) == (21_953, 10_771_685, 72_890_696)


@pytest.mark.parametrize("name", ["hta_nccl_data", "hta_ns_resolution_rank-0.pt.trace"])
def test_steps_and_what_lies_outside_are_the_whole_trace(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path)
    want = totals(work_of(path))
    time = analysed(path, tmp_path, WindowPolicy.STEP).time
    assert time.window is not None
    assert time.window.source == "ProfilerStep"
    assert time.window.pre_window_ns == 0, "steps launched all of it, also what ran behind their marks"
    busy = sum(step.wall_ns - step.idle_ns - step.unexplained_ns for step in time.steps)
    assert busy + time.window.pre_window_ns == want.span - want.idle
    assert all(step.wall_ns == sum(getattr(step, term) for term in LEDGER_TERMS) for step in time.steps)


def test_hta_agrees_where_it_works(tmp_path: Path) -> None:
    pytest.importorskip("hta")
    paths = {name: str(copied(name, tmp_path)) for name in COMPARED}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HTA, *paths.values()],
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    for index, (name, path) in enumerate(paths.items()):
        (entry,) = analysed(Path(path), tmp_path / str(index)).time.per_rank
        hta = answers[path]
        assert entry.overlap_ratio is not None
        assert round(100 * entry.overlap_ratio, 2) == hta["comp_comm_overlap_pctg"], name
        assert entry.compute_ns / 1000 == pytest.approx(hta["compute_time(us)"], abs=0.01)
        assert entry.wall_ns / 1000 == pytest.approx(hta["kernel_time(us)"], abs=0.01)
        assert (entry.idle_ns + entry.unexplained_ns) / 1000 == pytest.approx(hta["idle_time(us)"], abs=0.01)


def test_a_trace_of_a_rank_whose_gpu_did_nothing_says_so(tmp_path: Path) -> None:
    analysis = analysed(copied("hta_rank_non_gpu", tmp_path), tmp_path)
    assert analysis.time.per_rank == ()
    assert [gap.what for gap in analysis.gaps if gap.rank is not None] == ["GPU work"]


def test_a_cpu_trace_has_no_work_of_a_device(tmp_path: Path) -> None:
    path = copied("hta_cpu_only_gloo_rank-34.pt.trace", tmp_path)
    assert totals(work_of(path)) == Totals(0, 0, 0, 0, 0, 0, 0)
    (entry,) = analysed(path, tmp_path).time.per_rank
    assert entry.rank == 34
    assert entry.method != "kernels"
    assert entry.memcpy_ns == 0


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = Path(shutil.copy(TRACES / "hta_memory_timeline.raw.gz", tmp_path))
    with pytest.raises(BadInput):
        import_paths([path], tmp_path / "x.zprof")
