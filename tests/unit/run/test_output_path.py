"""Where a run may be written: an empty place, or over a run when asked; never over anything else."""

from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest, read_run_manifest
from zprof.run.output_path import check_output_path, replace_run
from zprof.run.writer import RankWriter


def write_run(path: Path, world_size: int) -> None:
    facts = {"zprof_version": "0", "created_ns": 1, "backend": "gloo", "device": "cpu"}
    RankWriter(path, 0, RunManifest(world_size=world_size, training=TrainingFacts(), **facts))  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "x.zprof", world_size=1)
    return tmp_path / "x.zprof"


def test_an_empty_place_is_free(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path):
        with replace_run(path, force=False):
            pass


def test_a_run_is_overwritten_only_when_asked(run: Path) -> None:
    with pytest.raises(BadInput), replace_run(run, force=False):
        pass
    with replace_run(run, force=True):
        assert not run.exists()
        write_run(run, world_size=7)
    assert read_run_manifest(run).world_size == 7
    assert [path.name for path in run.parent.iterdir()] == [run.name]


@pytest.mark.parametrize("begun", [True, False])
def test_the_old_run_comes_back_if_no_new_one_was_written(run: Path, begun: bool) -> None:
    def train() -> None:
        with replace_run(run, force=True):
            if begun:
                run.mkdir()
            raise KeyError("training failed")

    with pytest.raises(KeyError):
        train()
    assert read_run_manifest(run).world_size == 1
    assert [path.name for path in run.parent.iterdir()] == [run.name]


@pytest.mark.parametrize("manifest", [None, "{}", '{"schema": "of another"}', "not json"])
def test_a_folder_that_is_not_a_run_is_never_removed(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "weights").write_text("")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(BadInput), replace_run(tmp_path, force=True):
        pass
    assert (tmp_path / "weights").exists()


def test_a_folder_made_by_another_rank_of_the_same_job_is_free(run: Path) -> None:
    made_ns = run.stat().st_mtime_ns
    check_output_path(run, force=False, since_ns=made_ns)
    with pytest.raises(BadInput):
        check_output_path(run, force=False, since_ns=made_ns + 1)
    check_output_path(run, force=True, since_ns=made_ns + 1)


def test_a_run_that_a_killed_process_moved_away_comes_back(run: Path) -> None:
    run.rename(run.with_name(f".{run.name}.replaced"))
    with pytest.raises(BadInput), replace_run(run, force=False):
        pass
    assert read_run_manifest(run).world_size == 1
