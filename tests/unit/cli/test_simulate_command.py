"""``zprof simulate``: what it writes, and what it never replaces."""

import json
import shutil
from pathlib import Path

from tests.support.command_calls import Call
from tests.support.full_disk import MESSAGE, limit_files

SMALL = ("--ranks", "2", "--steps", "1", "--units", "2")


def test_traces_and_truth_are_written(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    planted = ("--cause", "straggler_rank", "--seed", "3", "--vendor", "amd", "--stage", "2")
    code, out, err = call("simulate", "-o", folder, *SMALL, *planted)
    assert (code, out) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json.gz", "rank1.json.gz", "truth.json"]
    assert "straggler_rank" not in err  # a diagnosis is to be tried without knowing
    truth = json.loads((folder / "truth.json").read_text())
    job = truth["job"]
    assert (truth["planted"], truth["seed"]) == (["straggler_rank"], 3)
    assert (job["engine"], job["vendor"]) == ("zero2", "amd")


def test_a_simulation_is_replaced_only_when_forced(call: Call, tmp_path: Path) -> None:
    assert call("simulate", "-o", tmp_path, "--ranks", "3", "--steps", "1")[0] == 0
    code, _, err = call("simulate", "-o", tmp_path, *SMALL)
    assert (code, "--force" in err) == (2, True)
    assert call("simulate", "-o", tmp_path, *SMALL, "--force")[0] == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_simulation_is_never_replaced(call: Call, tmp_path: Path) -> None:
    for name in ("mine.txt", "rank0.json.gz"):
        kept = tmp_path / "out" / name
        kept.parent.mkdir()
        kept.write_text("of a real job")
        assert call("simulate", "-o", kept.parent, *SMALL, "--force")[0] == 2
        assert call("simulate", "-o", kept, *SMALL, "--force")[0] == 2
        assert kept.read_text() == "of a real job"
        shutil.rmtree(kept.parent)


def test_clocks_of_hosts_are_skewed(call: Call, tmp_path: Path) -> None:
    assert call("simulate", "-o", tmp_path, *SMALL, "--ranks", "16", "--skew-us", "500")[0] == 0
    offsets = json.loads((tmp_path / "truth.json").read_text())["clock_offsets_ns"]
    assert offsets[0] == offsets[7] != offsets[8] == offsets[15]
    assert 0 < max(map(abs, offsets)) <= 500_000


def test_too_many_ranks_are_refused_before_anything_is_made_for_each(call: Call, tmp_path: Path) -> None:
    code, out, err = call("simulate", "-o", tmp_path / "out", "--ranks", str(10**12), "--skew-us", "5")
    assert (code, out, "1024" in err) == (2, "", True)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_named_and_nothing_is_left(call: Call, tmp_path: Path) -> None:
    with limit_files():
        code, _, err = call("simulate", "-o", tmp_path / "out", *SMALL)
    assert (code, MESSAGE in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_job_of_several_dimensions_is_written(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    mesh = ("--parallel", "pp=2,tp=2", "--schedule", "zero_bubble", "--micro-batches", "3", "--steps", "2")
    code, out, _ = call("simulate", "-o", folder, *mesh, "--cause", "slow_stage", "--framework", "torch")
    assert (code, out) == (0, "")
    truth = json.loads((folder / "truth.json").read_text())
    assert (truth["planted"], truth["ranks"]) == (["slow_stage"], [0, 1, 2, 3])
    assert truth["groups"]["pipeline"] == [[0, 2], [1, 3]]
    assert (
        truth["step_time_ns"] - truth["fixed_step_time_ns"]["slow_stage"] == truth["saving_ns"]["slow_stage"]
    )
    assert {row["role"] for row in truth["roles"]} >= {"tensor", "pipeline"}


def test_dimensions_that_do_not_fit_are_refused(call: Call, tmp_path: Path) -> None:
    for options in (
        ("--parallel", "pp=2,pp=2"),
        ("--parallel", "xx=2"),
        ("--parallel", "pp=" + "9" * 30),
        ("--parallel", "pp=64,tp=64"),
        ("--parallel", "dp=3,ep=2"),
        ("--parallel", "pp=2", "--vendor", "gloo"),
        ("--parallel", "pp=2", "--schedule", "interleaved", "--micro-batches", "3"),
        ("--parallel", "pp=2", "--cause", "no_prefetch"),
        ("--parallel", "dp=2", "--cause", "slow_stage"),
        ("--cause", "slow_stage"),
    ):
        code, out, err = call("simulate", "-o", tmp_path / "out", *options)
        assert (code, out) == (2, "")
        assert err
        assert not (tmp_path / "out").exists()
