"""Where the baseline of a test is, and that it is written whole."""

import os
from pathlib import Path

import pytest

from zprof.model.baseline import Baseline, Conditions, MemoryBaseline
from zprof.model.errors import BadInput
from zprof.testing.judging import baseline_path, load_baseline, save_baseline

FILE = Path("/repository/tests/test_model.py")
BASELINE = Baseline(
    zprof_version="0",
    name="test_model.test_step",
    conditions=Conditions(device="cpu", backend="none", world_size=1, engine="pytorch", stage=0, torch="2.8"),
    memory=MemoryBaseline(peak_bytes=3, untagged_bytes=1, tenants={"parameters": 2}),
    collectives=None,
    time=None,
)


def test_it_lies_beside_the_test() -> None:
    path = baseline_path(FILE, ["TestLayers", "test_step"])
    assert path == Path("/repository/tests/zprof-baselines/test_model.TestLayers.test_step.json")


def test_every_test_has_its_own() -> None:
    values = ["1", "../x", "..-x", "é", "ö", "x" * 300, "x" * 301, "\ud800", "\\"]
    names = [["test_a"], ["TestA", "test_a"], *([f"test_a[{value}]"] for value in values)]
    paths = [baseline_path(FILE, name) for name in names]
    assert len({str(path).lower() for path in paths}) == len(names)
    assert {path.parent for path in paths} == {FILE.parent / "zprof-baselines"}
    assert all(path.name.isascii() and len(path.name) < 200 for path in paths)


def test_it_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "zprof-baselines" / "a.json"
    assert load_baseline(path) is None
    save_baseline(BASELINE, path)
    assert load_baseline(path) == BASELINE
    assert os.listdir(path.parent) == ["a.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zprof-baselines" / "a.json"
    save_baseline(BASELINE, path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match="cannot be written"):
        save_baseline(BASELINE, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["a.json"]


def test_what_is_no_baseline_is_refused_in_words_of_pytest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(BadInput) as raised:
        load_baseline(path)
    assert str(path) in raised.value.message
    assert raised.value.hint == "pytest --zprof-update-baseline writes it again"
