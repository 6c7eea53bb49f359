"""Programs that know nothing of zprof: recorded, they print and end as they do alone, and the run is true."""

import signal
from pathlib import Path

import pytest
from recording_programs import CASES, Recorded

from zprof.analysis.memory.analyse import analyse_memory
from zprof.model.tenants import Tenant
from zprof.rules.diagnose import diagnose
from zprof.run.reader import load

pytestmark = pytest.mark.ranks
#: Other ends, another way to start, and what faster tests hold of compiled models and of children.
SLOW = ("exit3", "arguments here", "spawning", "ddp")
FAST_AND_SLOW = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]


@pytest.mark.parametrize("name", FAST_AND_SLOW)
def test_it_prints_and_ends_as_it_does_alone(programs: Recorded, name: str) -> None:
    plain, recorded = programs.plain(name), programs.recorded(name)
    assert plain.stdout, plain.stderr.decode()[-2000:]
    assert recorded.stdout == plain.stdout, recorded.stderr.decode()[-2000:]
    # What a shell says of a child that a signal ended.
    assert recorded.code == (plain.code if plain.code >= 0 else 128 - plain.code)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("exit3", 3, marks=pytest.mark.slow),
        ("raise", 1),
        ("kill", -signal.SIGTERM),
        ("gan", 0),
    ],
)
def test_the_ends_are_those_that_were_meant(programs: Recorded, name: str, code: int) -> None:
    assert programs.plain(name).code == code


def test_a_traceback_shows_the_program_alone(programs: Recorded) -> None:
    own, shown = (ended.stderr.decode() for ended in (programs.plain("raise"), programs.recorded("raise")))
    expected = own[own.index("Traceback") :].replace("raise.False", "raise.True")
    assert expected in shown
    assert "zprof/" not in shown.replace(str(programs.recorded("raise").run.parent), "")


def test_fsdp2_under_torchrun_has_six_tenants_and_the_law_beside_them(programs: Recorded) -> None:
    run = programs.recorded("fsdp2").loaded()
    assert (run.manifest.training.engine, run.manifest.training.stage) == ("fsdp2", 3)
    assert run.manifest.training.optimizer_state_bytes == 8
    report = diagnose(run)
    assert [memory.rank for memory in report.memory.per_rank] == [0, 1]
    for memory in report.memory.per_rank:
        assert set(memory.tenants) == set(Tenant)
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] > 0
        assert memory.untagged_bytes <= memory.peak_bytes / 1000
        law = memory.formula
        assert law is not None
        assert memory.state_bytes[Tenant.PARAMETERS] == law.parameters
        assert memory.state_bytes[Tenant.OPTIMIZER_STATE] == law.optimizer_state + law.scalar_bytes
    assert report.time.per_rank[0].steps == 4


def test_memory_before_the_first_step_has_the_full_model(programs: Recorded) -> None:
    """FSDP2 shards a model that was built whole: each rank holds all of it at first."""
    run = programs.recorded("fsdp2").loaded()
    alloc, role = run.frame(0, "init_alloc"), run.frame(0, "init_role")
    weights = set(role.loc[(role["tenant"] == "parameters") & (role["sub"] == "weight"), "generation"])
    rows = alloc[alloc["generation"].isin(weights)]
    full = 4 * run.manifest.training.parameters
    assert rows["bytes"].sum() >= full + full // 2
    marks = run.frame(0, "mark")
    inits = marks[(marks["name"] == "init") & (marks["number"] == -1)]
    assert inits["kind"].tolist() == ["window_begin", "window_end"]
    begin_ns, end_ns = inits["time_ns"].tolist()
    assert alloc["allocated_ns"].between(begin_ns - 1e9, end_ns).all()


@pytest.mark.slow
def test_ddp_with_a_compiled_model_in_light_mode(programs: Recorded) -> None:
    run = programs.recorded("ddp").loaded()
    assert (run.manifest.world_size, run.ranks) == (2, (0, 1))
    assert (run.manifest.training.engine, run.manifest.training.stage) == ("ddp", 0)
    assert {manifest.memory_mode for manifest in run.rank_manifests.values()} == {"light"}
    assert {manifest.status for manifest in run.rank_manifests.values()} == {"complete"}
    assert not run.has_table(0, "init_alloc"), "the init window is one of full mode"


def test_several_optimizers_are_one_step_and_several_models_are_named(programs: Recorded) -> None:
    ended = programs.recorded("gan")
    run = ended.loaded()
    assert run.rank_manifests[0].memory_steps == (2, 3)
    assert run.last_step(0) == 8, (
        "nine steps of the generator, though the other optimizer stepped eighteen times"
    )
    modules = set(run.memory(0)["module"].dropna().astype(str))
    assert {"Generator.layer", "Discriminator.layer"} <= modules
    (memory,) = analyse_memory(run).memory.per_rank
    elements = 8 * 32 + 32 + 32 + 1
    assert memory.state_bytes[Tenant.PARAMETERS] == 4 * elements


def test_fewer_steps_than_the_schedule_are_said_to_be_cut_short(programs: Recorded) -> None:
    ended = programs.recorded("one step")
    note, wrote = ended.notes()
    assert note.endswith("is cut short: the program ended after 1 of 12 scheduled steps")
    assert wrote == f"zprof: wrote {ended.run}; zprof report {ended.run}"
    assert ended.loaded().has_table(0, "init_alloc")


def test_a_killed_program_leaves_what_was_over(programs: Recorded) -> None:
    ended = programs.recorded("kill")
    assert ended.loaded().rank_manifests[0].memory_steps == (2, 3)
    assert "rank 0 was ended before it could write the rest" in ended.notes()[0]


@pytest.mark.parametrize("name", ["arguments", pytest.param("arguments here", marks=pytest.mark.slow)])
def test_a_program_that_trains_nothing_is_not_recorded(programs: Recorded, name: str) -> None:
    ended = programs.recorded(name)
    assert ended.notes() == ["zprof: nothing was recorded: no optimizer of torch has stepped"]
    assert not ended.run.exists()


def test_a_program_that_records_itself_is_recorded_once(programs: Recorded) -> None:
    ended = programs.recorded("itself")
    assert not ended.run.exists()
    own = load(ended.run.parent / "own.zprof")
    assert own.rank_manifests[0].status == "complete"
    assert (own.rank_manifests[0].memory_steps, own.rank_manifests[0].gaps) == ((0,), ())
    (note,) = ended.notes()
    assert "records itself" in note


@pytest.mark.parametrize("name", FAST_AND_SLOW)
def test_no_process_leaves_anything_behind(programs: Recorded, name: str) -> None:
    folder: Path = programs.recorded(name).run.parent
    assert not list(folder.glob("zprof-record-*"))
