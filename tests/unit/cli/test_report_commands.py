"""diagnose, explain, compare and export on runs as a user has them."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.model.findings import read_index

pytestmark = pytest.mark.usefixtures("diagnosed_once")
A, B = "RUNS/good.zprof", "RUNS/again.zprof"
WORK = ("--tokens-per-step", "4e3", "--baseline-tokens-per-step", "1000")


def test_diagnose_takes_a_baseline_and_the_tokens_of_both_runs(call: Call) -> None:
    code, out, err = call("diagnose", B, "--baseline", A, *WORK, "-f", "json")
    tree = json.loads(out)
    assert (code, err, tree["schema"], tree["verdict"]["status"]) == (0, "", "zprof.report/1", "ok")
    assert set(tree["unclaimed"]) >= {"exposed_wait_ns", "idle_ns"}
    assert tree["comparison"]["baseline"] == "good"
    work = tree["comparison"]["equal_work"]
    assert (work["a_per_step"], work["b_per_step"]) == (1000, 4000)


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_second_run_is_the_baseline(call: Call, command: str) -> None:
    named = call(command, B, "--baseline", A, "--window", "step")
    assert named[0] == 0
    assert call(command, B, A, "--window", "step") == call(command, B, "--window", "step", A) == named


def test_explain_prints_a_page_or_the_list(call: Call) -> None:
    code, out, _ = call("explain", "straggler-rank")
    assert (code, out.split("\n")[0]) == (0, "ZP301 straggler_rank")
    code, out, _ = call("explain", "--list")
    assert (code, [entry for entry in read_index() if f"{entry.id} {entry.name}" not in out]) == (0, [])


def test_export_writes_both_suffixes(call: Call, tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    code, out, err = call("export", A, "--perfetto", plain)
    assert (code, out, "ui.perfetto.dev" in err) == (0, "", True)
    assert call("export", A, "--perfetto", packed)[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json.gz"]
    plain.write_text("mine")
    assert call("export", A, "--perfetto", plain)[0] == 2
    assert plain.read_text() == "mine"
    assert call("export", A, "--perfetto", plain, "--force")[0] == 0
    assert json.loads(plain.read_bytes())["traceEvents"]


def test_the_file_of_an_export_is_an_output(call: Call, tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in ("old.json", "new.json", "other.json"))
    assert call("export", A, "--perfetto", old)[0] == 0
    assert call("export", A, "--perfetto", "-o", new)[0] == 0
    assert call("export", "--perfetto", A, "-o", other)[0] == 0
    assert old.read_bytes() == new.read_bytes() == other.read_bytes()


def test_export_selects_steps_and_ranks(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    assert call("export", A, "--perfetto", target, "--steps", "0-1", "--ranks", "1")[0] == 0
    events = json.loads(target.read_bytes())["traceEvents"]
    assert {event["pid"] for event in events} == {1}
    assert {event["name"] for event in events if event["name"].startswith("step ")} == {"step 0", "step 1"}
