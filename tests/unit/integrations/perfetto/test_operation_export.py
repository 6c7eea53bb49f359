"""An exported operation timeline: each recorded slice, and the ideal step beside it."""

from pathlib import Path

import pytest

from tests.support.chrome_trace import check_chrome_trace, read_chrome_trace
from tests.support.pipelines import order_1f1b, play, write_timeline
from zprof.base.errors import MissingData
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.integrations.perfetto.operations import export_operations
from zprof.integrations.perfetto.rank_rows import ExportChoice
from zprof.run.reader import Run

ROWS = play(
    [order_1f1b(3, 4, stage) for stage in range(3)],
    lambda replica, step, kind, chunk, number: 3.0 + (2.0 if (replica, chunk) == (1, 2) else 0.0),
    replicas=2,
    steps=2,
    with_transfers=True,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("timeline")
    return Run(import_paths([write_timeline(folder / "job.parquet", ROWS)], folder / "job.zprof").run)


def test_recorded_and_ideal_slices(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    with target.open("wb") as file:
        exported = export_operations(run, ExportChoice(), file, with_ideal=True)
    trace = read_chrome_trace(target)
    check_chrome_trace(trace)
    assert exported.slices == 2 * len(ROWS)
    assert sorted(trace.processes) == list(range(6))
    slowdown = diagnose(run).time.slowdown
    assert slowdown is not None
    for row in ROWS:
        if row["operation"] == "forward-compute" and row["step"] == 0:
            slices = trace.row(row["rank"], "compute")
            assert any(
                (each.start_ns, each.length_ns) == (row["start_ns"], row["duration_ns"]) for each in slices
            )
    ideal = [each for rank in range(6) for each in trace.row(rank, "ideal: compute")]
    first = [each for each in ideal if each.args["step"] == 0]
    assert max(each.start_ns + each.length_ns for each in first) == slowdown.ideal_step_ns
    lengths = [each.length_ns for each in first if each.name == "backward-compute"]
    assert max(lengths) - min(lengths) <= 1


def test_only_the_chosen_part(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    with target.open("wb") as file:
        choice = ExportChoice(ranks=frozenset({4}), steps=frozenset({1}))
        exported = export_operations(run, choice, file, with_ideal=False)
    trace = read_chrome_trace(target)
    assert (exported.ranks, exported.slices) == ((4,), sum(row["rank"] == 4 for row in ROWS) // 2)
    assert {each.args["step"] for slices in trace.slices.values() for each in slices} == {1}
    with target.open("wb") as file, pytest.raises(MissingData):
        export_operations(run, ExportChoice(steps=frozenset({9})), file, with_ideal=True)
