"""Programs that know nothing of zprof: recorded, they print and end as they do alone, and the run is true."""

import pytest
from recording_programs import CASES, Recorded

from zprof.analysis.memory.analyse import analyse_memory
from zprof.diagnosis.diagnose import diagnose
from zprof.model.tenants import Tenant
from zprof.run.reader import load

pytestmark = pytest.mark.ranks
slow = pytest.mark.slow


ALL = [pytest.param(name, marks=slow) if case.slow else name for name, case in CASES.items()]


@pytest.mark.parametrize("name", ALL)
def test_it_prints_and_ends_as_it_does_alone(programs: Recorded, name: str) -> None:
    plain, recorded = programs.plain(name), programs.recorded(name)
    assert plain.stdout, plain.stderr.decode()[-2000:]
    assert recorded.stdout == plain.stdout, recorded.stderr.decode()[-2000:]
    # A shell's code for a child that a signal ended.
    assert recorded.code == (plain.code if plain.code >= 0 else 128 - plain.code)
    assert not list(recorded.run.parent.glob("zprof-*")), "temporary folders are removed"


def test_fsdp2_under_torchrun_has_six_tenants_and_obeys_the_formula(programs: Recorded) -> None:
    run = load(programs.recorded("fsdp2").run)
    assert (run.manifest.training.engine, run.manifest.training.stage) == ("fsdp2", 3)
    assert run.manifest.training.optimizer_state_bytes == 8
    report = diagnose(run)
    assert [memory.rank for memory in report.memory.per_rank] == [0, 1]
    for memory in report.memory.per_rank:
        assert set(memory.tenants) == set(Tenant)
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] > 0
        assert memory.untagged_bytes <= memory.peak_bytes / 1000
        formula = memory.formula
        assert formula is not None
        assert memory.state_bytes[Tenant.PARAMETERS] == formula.parameters
        assert memory.state_bytes[Tenant.OPTIMIZER_STATE] == formula.optimizer_state + formula.scalar_bytes
    assert report.time.per_rank[0].steps == 4


def test_memory_before_the_first_step_has_the_full_model(programs: Recorded) -> None:
    """FSDP2 shards a model that was built whole: each rank holds all of it at first."""
    run = load(programs.recorded("fsdp2").run)
    alloc, role = run.frame(0, "init_alloc"), run.frame(0, "init_role")
    weights = set(role.loc[(role["tenant"] == "parameters") & (role["sub"] == "weight"), "generation"])
    rows = alloc[alloc["generation"].isin(weights)]
    full = 4 * run.manifest.training.parameters
    assert rows["bytes"].sum() >= full + full // 2
    marks = run.frame(0, "mark")
    inits = marks[(marks["name"] == "init") & (marks["number"] == -1)]
    assert inits["kind"].tolist() == ["window_begin", "window_end"]


def test_several_optimizers_are_one_step_and_several_models_are_named(programs: Recorded) -> None:
    """Nine steps of the generator, though the other optimizer steps eighteen times."""
    ended = programs.recorded("gan")
    run = load(ended.run)
    assert str(ended.run.name) in ended.notes()[-1]
    assert run.rank_manifests[0].memory_steps == (2, 3)
    assert run.last_step(0) == 8
    assert {"Generator", "Discriminator"} <= set(run.frame(0, "alloc")["module"].dropna().astype(str))
    (memory,) = analyse_memory(run).memory.per_rank
    assert memory.state_bytes[Tenant.PARAMETERS] == 4 * (8 * 32 + 32 + 32 + 1)


@slow
def test_fewer_steps_than_the_schedule_are_cut_short(programs: Recorded) -> None:
    ended = programs.recorded("one step")
    assert "1 of 12" in ended.notes()[0]
    assert str(ended.run) in ended.notes()[1]
    assert load(ended.run).has_table(0, "init_alloc")


@slow
def test_a_killed_program_leaves_what_was_recorded(programs: Recorded) -> None:
    ended = programs.recorded("kill")
    assert load(ended.run).rank_manifests[0].memory_steps == (2, 3)
    assert "rank 0" in ended.notes()[0]


def test_a_program_that_trains_nothing_is_not_recorded(programs: Recorded) -> None:
    ended = programs.recorded("arguments")
    assert len(ended.notes()) == 1
    assert not ended.run.exists()
