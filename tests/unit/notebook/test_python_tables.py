"""Tables of a run: the report's numbers are sums over their rows, to the nanosecond and the byte."""

import itertools
from pathlib import Path

import pandas as pd
import pytest
from msgspec.structs import replace

import zprof
from zprof.analysis.tables import make_memory_table
from zprof.model.report import Report
from zprof.model.time import LEDGER_TERMS
from zprof.model.training import TrainingFacts


@pytest.fixture
def report(run: zprof.AnalysedRun) -> Report:
    return zprof.diagnose(run)


def per_step(rows: pd.DataFrame, column: str, steps: int) -> int:
    return int(rows[column].sum()) // steps


def test_steps_are_the_ledger(run: zprof.AnalysedRun, report: Report) -> None:
    steps = run.steps()
    assert (steps[list(LEDGER_TERMS)].sum(axis=1) == steps["wall_ns"]).all()
    assert len(steps) == len(report.time.steps) > 0
    for row, leaf in zip(steps.to_dict("records"), report.time.steps, strict=True):
        assert all(row[name] == getattr(leaf, name) for name in ("rank", "step", "wall_ns", *LEDGER_TERMS))
    for rank in report.time.per_rank:
        rows = steps[steps["rank"] == rank.rank]
        running = [0, *itertools.accumulate(int(rows[term].sum()) for term in LEDGER_TERMS)]
        means = [high // len(rows) - low // len(rows) for low, high in itertools.pairwise(running)]
        assert means == [getattr(rank, term) for term in LEDGER_TERMS]
        assert per_step(rows, "overlapped_ns", len(rows)) == rank.overlapped_ns


def test_collectives_sum_to_the_report_by_kind_and_by_unit(run: zprof.AnalysedRun, report: Report) -> None:
    rows, steps = run.collectives(), len(run.steps())
    assert report.time.collectives
    for entry in report.time.collectives:
        same = (rows["kind"] == entry.kind) & (rows["group"] == entry.group) & (rows["dtype"] == entry.dtype)
        chosen = rows[same]
        assert len(chosen) / steps == entry.count
        for name in ("exposed_ns", "wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns"):
            assert per_step(chosen, name, steps) == getattr(entry, name)
        assert per_step(chosen, "duration_ns", steps) == entry.total_ns
    assert report.time.units
    for unit in report.time.units:
        same = (rows["kind"] == unit.kind) & (rows["group"] == unit.group) & (rows["unit"] == unit.unit)
        for name in ("exposed_wait_ns", "exposed_transfer_ns"):
            assert per_step(rows[same], name, steps) == getattr(unit, name)


def test_exposed_is_neither_wait_nor_hidden_and_starts_lie_in_their_step(run: zprof.AnalysedRun) -> None:
    rows = run.collectives()
    assert (rows["exposed_ns"] == rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]).all()
    assert (rows["exposed_wait_ns"] <= rows["wait_ns"]).all()
    assert 0 < rows["exposed_ns"].sum() <= (rows["wait_ns"] + rows["transfer_ns"]).sum()
    starts = run.steps().set_index(["rank", "step"])["start_ns"]
    of_step = starts.reindex(pd.MultiIndex.from_frame(rows[["rank", "step"]])).to_numpy()
    assert (rows["start_ns"].to_numpy() - of_step == rows["start_in_step_ns"].to_numpy()).all()


def test_memory_sums_to_the_peak_of_each_rank(cpu_run: zprof.AnalysedRun) -> None:
    table, timeline = cpu_run.memory(), cpu_run.memory_timeline()
    ranks = cpu_run.report.memory.per_rank
    assert table.groupby("rank")["bytes"].sum().to_dict() == {rank.rank: rank.peak_bytes for rank in ranks}
    live = timeline.filter(like="_bytes").sum(axis=1)
    assert live.groupby(timeline["rank"]).max().to_dict() == {rank.rank: rank.peak_bytes for rank in ranks}
    assert set(cpu_run.memory_timeline(rank=1)["rank"]) == {1}


def test_what_is_unknown_is_missing(gpu_run: zprof.AnalysedRun) -> None:
    assert gpu_run.memory().empty
    assert gpu_run.memory_timeline().empty
    assert gpu_run.memory_timeline(rank=0).empty
    rows = gpu_run.collectives()
    assert not (rows["last_rank"] < 0).any()
    assert not set(rows["late_reason"].dropna()) & {"", "unknown"}


def test_a_run_is_measured_once_and_again_with_other_facts(cpu_run: zprof.AnalysedRun) -> None:
    assert cpu_run.analysis is cpu_run.analysis
    other = cpu_run.described(TrainingFacts(stage=2))
    assert isinstance(other, zprof.AnalysedRun)
    assert (other.report.run.stage, cpu_run.report.run.stage) == (2, 3)


@pytest.mark.parametrize("window", ["step", "trace"])
def test_a_window_is_measured_by_step_or_whole(cpu_run: zprof.AnalysedRun, window: str) -> None:
    run = zprof.load(cpu_run.path, window=window)
    assert (run.report.time.is_whole, len(run.steps()) == len(run.ranks)) == (window == "trace",) * 2


def test_what_cannot_be_opened_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    for path in (tmp_path / "absent", tmp_path / "notes.md", tmp_path):
        with pytest.raises(zprof.ZprofError) as caught:
            zprof.load(path)
        assert str(path) in str(caught.value)
        assert caught.value.hint
        assert caught.value.__notes__ == [caught.value.hint]
    with pytest.raises(zprof.ZprofError):
        zprof.load(tmp_path, window="week")


def test_a_run_is_not_diagnosed_with_another_window_than_its_own(cpu_run: zprof.AnalysedRun) -> None:
    assert zprof.diagnose(zprof.Run(cpu_run.path), window="trace").time.is_whole
    with pytest.raises(zprof.ZprofError):
        zprof.diagnose(cpu_run, window="trace")


def test_a_peak_whose_step_is_unknown_has_none(cpu_run: zprof.AnalysedRun) -> None:
    memory = cpu_run.analysis.memory
    ranks = tuple(replace(rank, peak_step=-1, peak_phase="") for rank in memory.per_rank)
    table = make_memory_table(replace(memory, per_rank=ranks))
    assert not table.known("step").any()
    assert not table.known("phase").any()
    assert cpu_run.memory()["step"].notna().all()
