"""Where the baseline of a test is, and that it is written whole."""

import os
from pathlib import Path

import pytest

from tests.support.check_runs import Made
from zprof.base.errors import BadInput
from zprof.testing.limits import baseline_path, load_baseline, save_baseline

FILE = Path("/repository/tests/test_model.py")
BASELINE = Made().baseline


def test_every_test_has_a_file_of_its_own_beside_it() -> None:
    path = baseline_path(FILE, ["TestLayers", "test_step"])
    assert path == Path("/repository/tests/zprof-baselines/test_model.TestLayers.test_step.json")
    values = ["1", "../x", "..-x", "é", "ö", "x" * 300, "x" * 301, "\ud800", "\\"]
    names = [["test_a"], ["TestA", "test_a"], *([f"test_a[{value}]"] for value in values)]
    paths = [baseline_path(FILE, name) for name in names]
    assert len({str(path).lower() for path in paths}) == len(names)
    assert {path.parent for path in paths} == {FILE.parent / "zprof-baselines"}
    assert all(path.name.isascii() and len(path.name) < 200 for path in paths)


def test_a_baseline_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zprof-baselines" / "a.json"
    assert load_baseline(path) is None
    save_baseline(BASELINE, path)
    assert load_baseline(path) == BASELINE
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput):
        save_baseline(Made(peaks=(7000,)).baseline, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["a.json"]


def test_what_is_no_baseline_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(BadInput) as refused:
        load_baseline(tmp_path / "a.json")
    assert "a.json" in refused.value.message
    assert "--zprof-update-baseline" in refused.value.hint
