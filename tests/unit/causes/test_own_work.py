"""What a late rank does of its own, and where hosts sleep, is told with operators and lines."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.rule_runs import found
from zprof.analysis.analysis import RunAnalysis, Untested, analyse
from zprof.causes.cpu_bound_launch import CAUSE as cpu_bound_launch
from zprof.causes.data_loader import is_loading_as_long
from zprof.causes.straggler_rank import CAUSE as straggler_rank
from zprof.diagnosis.find_causes import ask
from zprof.model.findings import Finding
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import load
from zprof.run.writer import RankWriter

MS = 1_000_000
STEPS, RANKS, LATE = 8, 3, 1
_STEP_NS, _COMPUTE_NS, _OWN_NS = 140 * MS, 40 * MS, 40 * MS
#: Frames of each stack, innermost first: the loop, and what only some ranks do.
_LOOP, _OWN = 0, 1
_STACKS = (
    [("/job/train.py", 30, "main")],
    [("/x/site-packages/torch/_tensor.py", 5, "topk"), ("/job/metrics.py", 65, "log")],
)
_Event = tuple[int, int, str, str]


def _write_rank(folder: Path, rank: int, own: Sequence[_Event], *, is_late: bool, cpu_ns: int) -> None:
    manifest = RunManifest(
        zprof_version="0", created_ns=0, world_size=RANKS, backend="gloo", device="cpu",
        training=TrainingFacts(), folder="/job",
    )  # fmt: skip
    writer = RankWriter(folder, rank, manifest)
    events: list[_Event] = []
    rows, marks, samples = [], [], []
    for step in range(STEPS):
        begin = step * _STEP_NS
        met = begin + _COMPUTE_NS + _OWN_NS
        ready = met if is_late else begin + _COMPUTE_NS
        events.append((begin, _COMPUTE_NS, "cpu_op", "aten::mm"))
        events += [(begin + _COMPUTE_NS + at, *rest) for at, *rest in own] if is_late else []
        events.append((ready, met + 10 * MS - ready, "user_annotation", "zprof::wait"))
        times = (ready, met + 10 * MS, ready, ready + 1, ready, met + 10 * MS)
        rows.append(("all_reduce", "0,1,2", RANKS, step, "float32", 4096, *times, "gloo_fifo"))
        marks.append((begin, "step_begin", step, "", step * cpu_ns))
        marks.append((met + 12 * MS, "step_end", step, "", (step + 1) * cpu_ns))
        samples += [(begin + at, "timer", _LOOP) for at in range(5 * MS, _COMPUTE_NS, 10 * MS)]
        samples += [(at, "timer", _OWN) for at in range(begin + _COMPUTE_NS + MS, ready, 10 * MS)]
    _write(writer, "events", ("start_ns", "duration_ns", "category", "name"), events, thread=1)
    names = ("kind", "group", "group_size", "sequence", "dtype", "bytes", "start_ns", "end_ns",
             "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns", "method")  # fmt: skip
    _write(writer, "collectives", names, rows)
    _write(writer, "mark", ("time_ns", "kind", "number", "name", "thread_cpu_ns"), marks, thread_queued_ns=0)
    _write(writer, "host_sample", ("time_ns", "kind", "stack"), samples)
    frames = [
        (stack, depth, *frame) for stack, each in enumerate(_STACKS) for depth, frame in enumerate(each)
    ]
    _write(writer, "host_stack", ("stack", "depth", "file", "line", "function"), frames)
    writer.finish(memory_steps=(), time_steps=range(STEPS), gaps=(), status="complete")


def _write(
    writer: RankWriter, table: str, names: Sequence[str], rows: Sequence[tuple[object, ...]], **same: object
) -> None:
    columns: dict[str, list[object]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    writer.write_table(table, columns | {name: [value] * len(rows) for name, value in same.items()})


def _analyse(tmp_path: Path, own: Sequence[_Event], late: Sequence[int], cpu_ns: int) -> RunAnalysis:
    for rank in range(RANKS):
        _write_rank(tmp_path / "a.zprof", rank, own, is_late=rank in late, cpu_ns=cpu_ns)
    return analyse(load(tmp_path / "a.zprof"))


_EXTRA: list[_Event] = [(5 * n * MS, 5 * MS, "cpu_op", "aten::topk") for n in range(8)]
_NESTED: list[_Event] = [*_EXTRA, *((5 * n * MS + 1, MS, "cpu_op", "aten::sort") for n in range(8))]
_LARGER: list[_Event] = [(0, _OWN_NS, "cpu_op", "aten::mm")]


def _straggler(tmp_path: Path, own: Sequence[_Event]) -> Finding:
    return found(straggler_rank, _analyse(tmp_path, own, [LATE], 80 * MS))


@pytest.mark.parametrize(("own", "operator", "count", "others"), [
    (_NESTED, "aten::topk", 8, 0),
    (_LARGER, "aten::mm", 2, 1),
])  # fmt: skip
def test_a_rank_that_does_more_is_told_by_its_operators_and_their_line(
    tmp_path: Path, own: Sequence[_Event], operator: str, count: float, others: float
) -> None:
    finding = _straggler(tmp_path, own)
    facts = {fact.key: fact for fact in finding.evidence}
    mine, theirs = (facts[f"{who}_operator_1_per_step"] for who in ("extra", "others"))
    assert operator in mine.what
    assert (mine.value, mine.rank, theirs.value) == (count, LATE, others)
    assert "extra_operator_2_per_step" not in facts
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("metrics.py", 65)
    assert operator in finding.fix
    assert "numactl" not in finding.fix


def test_a_rank_that_sleeps_is_told_by_the_line(tmp_path: Path) -> None:
    finding = _straggler(tmp_path, [])
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("metrics.py", 65)
    assert "metrics.py:65" in finding.fix
    assert "extra_operator_1_per_step" not in {fact.key for fact in finding.evidence}


def test_hosts_that_all_sleep_are_told_by_the_line(tmp_path: Path) -> None:
    gap = ask(cpu_bound_launch, _analyse(tmp_path, [], range(RANKS), 41 * MS))
    assert isinstance(gap, Untested)
    assert "metrics.py:65" in gap.reason
    assert "py-spy" not in gap.remedy


def test_python_between_operators_is_told_by_the_line(tmp_path: Path) -> None:
    finding = found(cpu_bound_launch, _analyse(tmp_path, [], range(RANKS), 90 * MS))
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("metrics.py", 65)
    assert "py-spy" not in finding.fix


def test_a_loader_is_as_long_as_before_or_longer(tmp_path: Path) -> None:
    """By its own time in the steps, whatever of it is exposed."""

    def load_for(ms: int) -> RunAnalysis:
        loads: list[_Event] = [(0, ms * MS, "user_annotation", "enumerate(DataLoader)#_Iter.__next__")]
        return _analyse(tmp_path / str(ms), loads if ms else [], range(RANKS), 80 * MS)

    short, longer, none = load_for(10), load_for(30), load_for(0)
    assert is_loading_as_long(short, short)
    assert is_loading_as_long(short, longer)
    assert not is_loading_as_long(longer, short)
    assert not is_loading_as_long(short, none)
    assert not is_loading_as_long(none, short)
