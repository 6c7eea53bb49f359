"""Roles of process groups, exposed time by role and the bubble, against the truth of simulated jobs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.simulations import simulate_traces
from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.analysis.mesh.measure import measure_mesh
from zprof.base.errors import BadInput
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.imports.options import ImportOptions
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.gaps import GapKind
from zprof.model.mesh import GroupRole, Mesh, RoleBasis
from zprof.model.report import VerdictStatus
from zprof.run.reader import load
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.mesh.truth import MeshTruth, write_mesh_job
from zprof.step.play import PlayedStep

JOBS: dict[str, dict[str, Any]] = {
    "3d": {"degrees": Degrees(pipeline=4, data=2, tensor=2)},
    "interleaved": {"degrees": Degrees(pipeline=4), "schedule": "interleaved", "framework": "torch"},
    "hybrid": {"degrees": Degrees(replica=2, data=4)},
    "ring": {"degrees": Degrees(data=2, context=4)},
    "experts": {"degrees": Degrees(data=4, expert=4)},
    "tensor": {"degrees": Degrees(data=2, tensor=4)},
}
#: The simulator's names of roles.
ROLES = {"data": GroupRole.SHARD, "model": GroupRole.OTHER}


@pytest.fixture(scope="module", params=JOBS)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunAnalysis, MeshTruth]:
    folder = tmp_path_factory.mktemp(request.param)
    truth = write_mesh_job(make_mesh_job(**JOBS[request.param]), folder / "traces")
    import_paths([folder / "traces"], folder / "run.zprof")
    return analyse(load(folder / "run.zprof")), truth


def true_roles(truth: MeshTruth) -> dict[str, GroupRole]:
    """The role of each group with messages, by its name in tables."""
    roles: dict[str, GroupRole] = {}
    for role, groups in truth.groups.items():
        for ranks in groups:
            if role != "world" and len(ranks) > 1:
                roles.setdefault(",".join(map(str, ranks)), ROLES.get(role) or GroupRole(role))
    return roles


def test_roles_follow_from_descriptions(job: tuple[RunAnalysis, MeshTruth]) -> None:
    analysis, truth = job
    mesh = measure_mesh(analysis)
    assert mesh is not None
    known = true_roles(truth)
    assert {group.basis for group in mesh.groups} == {RoleBasis.DESCRIPTION}
    assert {g.group: g.role for g in mesh.groups if g.group in known} == {
        g.group: known[g.group] for g in mesh.groups if g.group in known
    }


def test_roles_follow_from_messages_alone(job: tuple[RunAnalysis, MeshTruth]) -> None:
    analysis, truth = job
    mesh = measure_mesh(replace(analysis, source=None))
    assert mesh is not None
    known = true_roles(truth)
    wrong = {
        g.group: (g.role, known[g.group])
        for g in mesh.groups
        if g.group in known and known[g.group] is not GroupRole.OTHER and g.role is not known[g.group]
    }
    assert not wrong
    assert {group.basis for group in mesh.groups} == {RoleBasis.MESSAGES}


def test_exposed_time_by_role_is_that_of_the_ledger_of_truth(job: tuple[RunAnalysis, MeshTruth]) -> None:
    analysis, truth = job
    mesh = measure_mesh(analysis)
    assert mesh is not None
    count = len(analysis.steps)
    for entry in mesh.roles:
        true = [each for each in truth.roles if (ROLES.get(each.role) or GroupRole(each.role)) is entry.role]
        transfer = sum(each.exposed_transfer_ns for each in true) / count
        wait = sum(each.exposed_wait_ns for each in true) / count
        assert entry.exposed_transfer_ns == pytest.approx(transfer, rel=0.05, abs=50_000)
        assert entry.exposed_wait_ns == pytest.approx(wait, rel=0.05, abs=50_000)


def test_the_bubble_is_that_of_equal_stages(job: tuple[RunAnalysis, MeshTruth]) -> None:
    analysis, truth = job
    mesh = measure_mesh(analysis)
    assert mesh is not None
    if not mesh.list_groups(GroupRole.PIPELINE):
        assert mesh.bubble is None
        return
    assert mesh.bubble is not None
    assert mesh.bubble.stages == 4
    assert (mesh.bubble.micro_batches, mesh.bubble.virtual) == (16, truth.parallel.virtual)
    assert mesh.bubble.share_ratio == pytest.approx(mesh.bubble.ideal_ratio, rel=0.1)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 16)])
def test_the_bubble_of_equal_stages_is_the_closed_form(
    stages: int, micro_batches: int, tmp_path: Path
) -> None:
    job = make_mesh_job(
        degrees=Degrees(pipeline=stages), micro_batches=micro_batches, stage_layers=6, steps=2
    )
    simulate_traces(job, tmp_path / "traces")
    import_paths([tmp_path / "traces"], tmp_path / "run.zprof")
    mesh = analyse(load(tmp_path / "run.zprof")).time.mesh
    assert mesh is not None
    assert mesh.bubble is not None
    expected = (stages - 1) / (micro_batches + stages - 1)
    assert mesh.bubble.ideal_ratio == pytest.approx(expected)
    assert mesh.bubble.share_ratio == pytest.approx(expected, rel=0.01)


def test_a_job_with_one_kind_of_group_has_no_mesh(job: tuple[RunAnalysis, MeshTruth]) -> None:
    analysis, _ = job
    groups = list(analysis.collectives.texts("group"))
    one = analysis.collectives.at([index for index, group in enumerate(groups) if group == groups[0]])
    mesh: Mesh | None = measure_mesh(replace(analysis, collectives=one))
    assert mesh is None or len({group.role for group in mesh.groups}) == 1


def test_a_stated_mesh_gives_roles_and_names_what_contradicts_it(tmp_path: Path) -> None:
    simulate_traces(
        make_mesh_job(degrees=Degrees(pipeline=2, data=2, tensor=2), framework="deepspeed"),
        tmp_path / "traces",
    )
    options = ImportOptions(mesh=(("pp", 2), ("tp", 2)))
    with pytest.raises(BadInput, match="4 ranks"):
        import_paths([tmp_path / "traces"], tmp_path / "run.zprof", options=options)
    assert not (tmp_path / "run.zprof").exists()
    options = ImportOptions(mesh=(("pp", 2), ("dp", 2), ("tp", 2)))
    import_paths([tmp_path / "traces"], tmp_path / "run.zprof", options=options)
    run = load(tmp_path / "run.zprof")
    analysis = analyse(run)
    assert analysis.time.mesh is not None
    stated = {group.ranks: (group.role, group.basis) for group in analysis.time.mesh.groups}
    assert stated[0, 4] == (GroupRole.PIPELINE, RoleBasis.STATED)
    assert stated[0, 2] == (GroupRole.SHARD, RoleBasis.STATED)
    assert stated[0, 1] == (GroupRole.TENSOR, RoleBasis.STATED)
    other = analyse(run.described(replace(run.manifest.training, mesh=(("dp", 2), ("pp", 4)))))
    assert other.time.mesh is not None
    assert {group.basis for group in other.time.mesh.groups if group.ranks == (0, 1)} == {RoleBasis.MESSAGES}
    more = [gap.kind for gap in other.gaps if gap not in analysis.gaps]
    assert more == [GapKind.COLLECTIVES]


def test_a_step_of_a_mesh_takes_as_long_replayed(job: tuple[RunAnalysis, MeshTruth]) -> None:
    """Pairs of a ring, or of a pipeline, exchange messages at the same time."""
    analysis, truth = job
    step = PlayedStep(analysis=analysis)
    assert step.has_kernels
    assert step.step_ns == pytest.approx(truth.step_time_ns, rel=0.02)


def test_a_healthy_pipeline_is_ok_and_its_bubble_is_no_unexplained_loss(
    job: tuple[RunAnalysis, MeshTruth],
) -> None:
    analysis, _ = job
    report = diagnose(analysis)
    accused = [finding.cause for finding in report.findings if finding.confidence is not Confidence.LOW]
    assert not accused
    if analysis.time.mesh is not None and analysis.time.mesh.bubble is not None:
        assert report.verdict.status is VerdictStatus.OK
