"""Where a run may be written: an empty place, or over a run when asked; never over anything else."""

from pathlib import Path

import pytest

from zprof.model.errors import BadInput
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.target import clear_target
from zprof.run.writer import RankWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    manifest = RunManifest(
        zprof_version="0", created_ns=1, world_size=1, backend="gloo", device="cpu", training=TrainingFacts()
    )
    RankWriter(tmp_path / "x.zprof", 0, manifest)
    return tmp_path / "x.zprof"


def test_an_empty_place_is_free(tmp_path: Path) -> None:
    clear_target(tmp_path / "new", force=False)
    clear_target(tmp_path, force=False)


def test_a_run_is_overwritten_only_when_asked(run: Path) -> None:
    with pytest.raises(BadInput, match="a run is there already"):
        clear_target(run, force=False)
    clear_target(run, force=True)
    assert not run.exists()


@pytest.mark.parametrize("manifest", [None, "{}", '{"schema": "of another"}', "not json"])
def test_what_is_not_a_run_is_never_removed(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "weights").write_text("")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(BadInput, match="not a run"):
        clear_target(tmp_path, force=True)
    assert (tmp_path / "weights").exists()
