"""Real traces of other people: the whole trace against an exact sweep, and known values."""

import shutil
from pathlib import Path

import pytest

from tests.support.interval_oracle import Totals, totals, work_of
from tests.support.real_traces import TRACES
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
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


#: Of each vendor the smallest, and one with communication.
FAST = {"hta_nccl_data", "hta_mi250_minitoy", "tracelens_b200_eager", "hta_cuda_event_sync_multi_stream"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in GOLDEN]
)
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


def test_steps_and_work_outside_of_them_are_the_whole_trace(tmp_path: Path) -> None:
    path = copied("hta_nccl_data", tmp_path)
    want = totals(work_of(path))
    time = analysed(path, tmp_path, WindowPolicy.STEP).time
    assert time.window is not None
    assert time.window.source == "ProfilerStep"
    assert time.window.pre_window_ns == 0, "steps launched all of it, also what ran behind their marks"
    busy = sum(step.wall_ns - step.idle_ns - step.unexplained_ns for step in time.steps)
    assert busy + time.window.pre_window_ns == want.span - want.idle
    assert all(step.wall_ns == sum(getattr(step, term) for term in LEDGER_TERMS) for step in time.steps)


def test_traces_without_work_of_a_device(tmp_path: Path) -> None:
    idle = analysed(copied("hta_rank_non_gpu", tmp_path), tmp_path / "idle")
    assert idle.time.per_rank == ()
    assert [gap.what for gap in idle.gaps if gap.rank is not None] == ["GPU work"]
    path = copied("hta_cpu_only_gloo_rank-34.pt.trace", tmp_path)
    assert totals(work_of(path)) == Totals(0, 0, 0, 0, 0, 0, 0)
    (entry,) = analysed(path, tmp_path / "cpu").time.per_rank
    assert (entry.rank, entry.memcpy_ns) == (34, 0)
    assert entry.method != "kernels"
