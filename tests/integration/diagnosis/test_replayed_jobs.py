"""The replay of a measured step against the counterfactual of a simulator that knows nothing of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.diagnosis_jobs import add_user_facts
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.run.reader import load
from zprof.simulator.ground_truth import Truth, draw_job, write_job
from zprof.step.edits import even_out_ranks
from zprof.step.from_recording import build_graph
from zprof.step.play import play_graph
from zprof.step.tasks import Graph

#: What the replay may be off by, of the truth and of the step.
OFF_RATIO, OFF_STEP_RATIO = 0.15, 0.003


def simulated(folder: Path, seed: int, fault: str) -> tuple[RunAnalysis, Truth]:
    truth = write_job(draw_job(seed, fault), folder / "job")
    import_paths(sorted((folder / "job").glob("rank*")), folder / "run.zprof")
    return analyse_time_only(load(folder / "run.zprof")), truth


def graph_of(analysis: RunAnalysis) -> Graph:
    graph = build_graph(analysis)
    assert isinstance(graph, Graph)
    return graph


def step_ns(ends: np.ndarray) -> float:
    return float((ends[:, -1] - ends[:, 0]).mean()) / (ends.shape[1] - 1)


def assert_priced(analysis: RunAnalysis, truth: Truth, fault: str, before: RunAnalysis | None = None) -> None:
    found = {finding.cause: finding for finding in diagnose(analysis, before).findings}[fault]
    assert found.confidence is not Confidence.LOW
    low, high = found.saving_ns
    assert low <= (truth.saving_ns[fault] or 0) <= high


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_unchanged_step_takes_as_long_as_it_took(tmp_path: Path, seed: int) -> None:
    analysis, truth = simulated(tmp_path, seed, "no_prefetch")
    assert step_ns(play_graph(graph_of(analysis))) == pytest.approx(truth.step_time_ns, rel=0.005)


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        (0, "straggler_rank"),
        pytest.param(0, "rotating_straggler", marks=pytest.mark.slow),
        pytest.param(1, "rotating_straggler", marks=pytest.mark.slow),
    ],
)
def test_ranks_made_even_win_what_the_slow_ones_cost(tmp_path: Path, seed: int, fault: str) -> None:
    analysis, truth = simulated(tmp_path, seed, fault)
    graph = graph_of(analysis)
    won = step_ns(play_graph(graph)) - step_ns(play_graph(even_out_ranks(graph)))
    slack = OFF_STEP_RATIO * truth.step_time_ns
    assert won == pytest.approx(truth.saving_ns[fault], rel=OFF_RATIO, abs=slack)


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        pytest.param(0, "no_prefetch", marks=pytest.mark.slow),
        pytest.param(0, "rate_limited_prefetch", marks=pytest.mark.slow),
        pytest.param(1, "data_loader", marks=pytest.mark.slow),
        # one GEMM kernel serves matrices of several sizes
        pytest.param(0, "comm_slows_compute", marks=pytest.mark.slow),
        pytest.param(
            0, "compute_blocks_comm", marks=pytest.mark.slow
        ),  # reductions are held as well, and still need their gradients
        pytest.param(
            2, "units_too_small", marks=pytest.mark.slow
        ),  # the head's gather moves ahead by a block, too
        (6010, "rotating_straggler"),  # of two steps, each has another slow device
        # a later micro-batch gathers for recomputation alone
        pytest.param(4009, "checkpoint_regathers", marks=pytest.mark.slow),
    ],
)
def test_a_planted_cause_is_sure_and_priced(tmp_path: Path, seed: int, fault: str) -> None:
    assert_priced(*simulated(tmp_path, seed, fault), fault)


@pytest.mark.parametrize("seed", [5003, pytest.param(5036, marks=pytest.mark.slow)])
def test_units_gathered_in_many_pieces_are_priced(tmp_path: Path, seed: int) -> None:
    """Each unit is a block, so units are not too small; its pieces are, one message for each parameter."""
    healthy = draw_job(seed)
    alpha = max(60_000, healthy.cluster.inter_alpha_ns)
    whole = replace(
        healthy,
        steps=3,
        micro_batches=1,
        regather_every_micro_batch=False,
        clip=True,  # tiny messages show the latency
        blocks=tuple(replace(block, params=block.params // 20) for block in healthy.blocks),
        cluster=replace(healthy.cluster, intra_alpha_ns=alpha, inter_alpha_ns=alpha),
        gather_pieces=1,
    )
    pieces = replace(whole, gather_pieces=24)
    truth = write_job(pieces, tmp_path / "job")
    import_paths(sorted((tmp_path / "job").glob("rank*")), tmp_path / "run.zprof")
    found = {each.cause: each for each in diagnose(analyse_time_only(load(tmp_path / "run.zprof"))).findings}
    low, high = found["units_too_small"].saving_ns
    gain_ns = truth.step_time_ns - write_job(whole, tmp_path / "whole").step_time_ns
    assert found["units_too_small"].confidence is not Confidence.LOW
    assert low <= gain_ns <= high


@pytest.mark.slow
def test_gathers_held_by_kernels_are_no_missing_prefetch(tmp_path: Path) -> None:
    analysis, _ = simulated(tmp_path, 4006, "compute_blocks_comm")
    found = {finding.cause: finding for finding in diagnose(analysis).findings}
    assert found["compute_blocks_comm"].confidence is not Confidence.LOW
    assert "no_prefetch" not in found


@pytest.mark.slow
def test_gathers_beside_all_reduces_of_replicas_cost_what_these_lose(tmp_path: Path) -> None:
    fault = "needless_reshard_after_forward"
    analysis, truth = simulated(tmp_path, 4015, fault)
    assert_priced(add_user_facts(analysis, draw_job(4015, fault)), truth, fault)


@pytest.mark.parametrize(  # with sizes of messages, and without
    "seed", [pytest.param(4, marks=pytest.mark.slow), 7]
)
def test_a_slow_link_is_priced_against_the_run_before(tmp_path: Path, seed: int) -> None:
    analysis, truth = simulated(tmp_path, seed, "low_bus_bandwidth")
    import_paths(sorted((tmp_path / "job" / "baseline").glob("rank*")), tmp_path / "before.zprof")
    before = analyse_time_only(load(tmp_path / "before.zprof"))
    assert_priced(analysis, truth, "low_bus_bandwidth", before)
