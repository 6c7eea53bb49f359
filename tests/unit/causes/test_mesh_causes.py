"""Simulated jobs of several dimensions: exposed messages, unequal experts and sequences, and healthy jobs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.simulations import simulate_traces
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.causes import load_cause
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.diagnosis.find_causes import ask
from zprof.model.findings import Confidence, Finding
from zprof.run.reader import load
from zprof.simulator.job import Job
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job, plant_mesh
from zprof.simulator.mesh.truth import MeshTruth, write_mesh_job

EXPERTS = Degrees(data=4, expert=4)
HYBRID = Degrees(replica=2, data=4)
CONTEXT = Degrees(data=2, context=2, tensor=2)
TENSOR = Degrees(data=2, tensor=4)


def analysed_mesh(job: Job, folder: Path) -> tuple[MeshTruth, RunAnalysis]:
    truth = write_mesh_job(job, folder / "traces")
    return truth, read_traces(folder)


def analyse_job(job: Job, folder: Path) -> RunAnalysis:
    simulate_traces(job, folder / "traces")
    return read_traces(folder)


def read_traces(folder: Path) -> RunAnalysis:
    import_paths([folder / "traces"], folder / "run")
    return analyse_time_only(load(folder / "run"))


def list_sure(analysis: RunAnalysis) -> list[Finding]:
    return [each for each in diagnose(analysis).findings if each.confidence is not Confidence.LOW]


@pytest.mark.parametrize(
    ("cause", "degrees", "settings"),
    [
        ("exposed_dispatch", EXPERTS, {}),
        ("exposed_dispatch", Degrees(pipeline=2, data=2, expert=2), {"framework": "deepspeed"}),
        ("exposed_replica_all_reduce", HYBRID, {"ranks_per_node": 4}),
        ("exposed_replica_all_reduce", HYBRID, {"ranks_per_node": 4, "vendor": "amd"}),
        ("exposed_context_exchange", CONTEXT, {"ring_attention": False}),
        ("exposed_context_exchange", Degrees(context=4), {"framework": "torch"}),
        ("exposed_tensor_parallel", TENSOR, {"vendor": "amd"}),
        ("exposed_tensor_parallel", TENSOR, {"framework": "deepspeed", "sequence_parallel": False}),
        ("expert_imbalance", EXPERTS, {"vendor": "amd"}),
        ("expert_imbalance", Degrees(pipeline=2, data=2, expert=2), {"schedule": "zero_bubble"}),
        ("sequence_length_imbalance", Degrees(data=4), {}),
        ("sequence_length_imbalance", Degrees(pipeline=2, data=2), {"vendor": "amd"}),
    ],
)
def test_the_planted_cause_is_first_and_its_saving_is_true(
    cause: str, degrees: Degrees, settings: dict[str, Any], tmp_path: Path
) -> None:
    job = plant_mesh(make_mesh_job(degrees=degrees, steps=3, **settings), cause)
    truth, analysis = analysed_mesh(job, tmp_path)
    first = list_sure(analysis)[0]
    assert first.cause == cause
    saving_ns = truth.saving_ns[cause]
    assert saving_ns is not None
    assert first.saving_ns[0] <= saving_ns <= first.saving_ns[1]
    culprits = truth.culprits[cause]
    if culprits:
        named = {entry.rank for entry in first.evidence if entry.rank is not None}
        assert named
        assert named <= set(culprits)


@pytest.mark.parametrize("degrees", [EXPERTS, HYBRID, CONTEXT, TENSOR, Degrees(pipeline=2, data=2, tensor=2)])
def test_a_healthy_mesh_accuses_nobody(degrees: Degrees, tmp_path: Path) -> None:
    assert not list_sure(analyse_job(make_mesh_job(degrees=degrees, steps=3), tmp_path))


@pytest.mark.parametrize("degrees", [EXPERTS, Degrees(data=4)])
def test_a_rank_that_is_slow_in_all_kernels_is_a_straggler(degrees: Degrees, tmp_path: Path) -> None:
    job = plant_mesh(make_mesh_job(degrees=degrees, steps=3), "straggler_rank")
    truth, analysis = analysed_mesh(job, tmp_path)
    found = list_sure(analysis)
    assert found[0].cause == "straggler_rank"
    assert {entry.rank for entry in found[0].evidence if entry.rank is not None} == set(
        truth.culprits["straggler_rank"]
    )
    assert not {"expert_imbalance", "sequence_length_imbalance"} & {each.cause for each in found}


def test_without_sizes_exposed_messages_are_a_note(tmp_path: Path) -> None:
    job = plant_mesh(make_mesh_job(degrees=EXPERTS, steps=3), "exposed_dispatch")
    analysis = analyse_job(job, tmp_path)
    rows = analysis.collectives
    unsized = replace(analysis, collectives=rows.with_columns(bytes=rows.ints("bytes") * 0))
    found = ask(load_cause("exposed_dispatch"), unsized)
    assert isinstance(found, Finding)
    assert found.confidence is Confidence.LOW
    assert found.saving_ns[0] == 0
