"""Nothing leaves in a bundle that its owner did not mean to give; what support needs does."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.support.diagnoses import base, planted
from zprof.cli import main
from zprof.integrations.redaction import AllowList, OwnWords, StandIns, read_own_words, redact_group
from zprof.integrations.support_bundle import Bundle, collect_bundle, write_bundle
from zprof.model.doctor import Check, CheckStatus, Doctor
from zprof.model.gaps import Gap
from zprof.rules.diagnose import diagnose
from zprof.run.manifest import RunManifest, to_json
from zprof.run.reader import Run, load
from zprof.simulator.causes import Cause

TOKEN = "hf_QwErTyUiOpAsDfGhJkLzXcVb"
SECRETS = (TOKEN, "/home/ada", "ada@example.org", "layers.0", "moonshot", "gpu-box-7", "C:\\users")
DOCTOR = Doctor(
    zprof_version="0",
    checks=(Check(name="torch", status=CheckStatus.OK, found="2.13.0 in /home/ada/venv"),),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose owner's secrets stand in every place that a stranger's file can put one."""
    folder = tmp_path_factory.mktemp("bundle")
    job = planted(Cause.STRAGGLER_RANK, replace(base(0), steps=3, units=2), folder)
    path = job.run.path.rename(folder / "moonshot.zprof")
    secret_gap = Gap(
        what="trace", reason=f"/home/ada/x.json of ada@example.org, {TOKEN}", remedy=r"see C:\users\a.txt"
    )
    manifest = replace(
        job.run.manifest,
        environment={"HF_TOKEN": TOKEN, "NCCL_ALGO": f"file:/home/ada/{TOKEN}", "python": "3.11.7"},
        gaps=(secret_gap,),
        device=f"cuda (NVIDIA H200) {TOKEN}",
    )
    (path / "manifest.json").write_text(to_json(manifest))
    for rank in path.glob("rank*/rank.json"):
        content = json.loads(rank.read_text())
        rank.write_text(json.dumps({**content, "host": "gpu-box-7"}))
    return load(path)


@pytest.fixture(scope="module")
def own() -> OwnWords:
    return read_own_words()


@pytest.fixture(scope="module")
def bundle(run: Run) -> Bundle:
    return collect_bundle(run, diagnose(run), DOCTOR)


def test_no_secret_is_in_any_part(bundle: Bundle, run: Run) -> None:
    everything = b"\n".join(part.content for part in bundle.parts).decode("latin-1")
    tables = [pq.read_table(io.BytesIO(p.content)) for p in bundle.parts if p.name.endswith(".parquet")]
    everything += "\n".join(str(table.to_pydict()) for table in tables)
    assert len(tables) == len(run.ranks)
    for secret in SECRETS:
        assert secret not in everything, secret
    assert "environment.HF_TOKEN" in bundle.left_out


def test_the_same_name_has_the_same_stand_in_everywhere(bundle: Bundle) -> None:
    stand_in = bundle.names["layers.0"]
    assert stand_in.startswith("module-")
    table = pq.read_table(
        io.BytesIO(next(p.content for p in bundle.parts if p.name.endswith("rank00000.parquet")))
    )
    assert stand_in in table.column("unit").to_pylist()
    assert stand_in in next(p.content for p in bundle.parts if p.name == "report.json").decode()
    assert len(set(bundle.names.values())) == len(bundle.names)


def test_what_support_needs_is_there(bundle: Bundle, run: Run) -> None:
    report = json.loads(next(p.content for p in bundle.parts if p.name == "report.json"))
    whole = diagnose(run)
    assert report["findings"][0]["cause"] == "straggler_rank"
    assert report["findings"][0]["saving_ns"] == list(whole.findings[0].saving_ns)
    assert report["time"]["per_rank"][0]["wall_ns"] == whole.time.per_rank[0].wall_ns
    assert report["findings"][0]["fix"] == whole.findings[0].fix
    times = pq.read_table(io.BytesIO(bundle.parts[-1].content)).column("start_ns").to_pylist()
    assert times == run.table(run.ranks[-1], "collectives").column("start_ns").to_pylist()


def test_leaves_that_nobody_thought_about_stay_here(own: OwnWords) -> None:
    allowed = AllowList(StandIns(own))
    seen = allowed.tree({"rank": 1, "novelty": "text", "remark": {"a": 1}, "zq": 1, "3": 2, "status": "ok"})
    assert seen == {"rank": 1, "3": 2, "status": "ok"}
    assert allowed.dropped == {"novelty", "remark", "zq"}


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("moves 50.0 GB/s of 100 GB/s", "moves 50.0 GB/s of 100 GB/s"),
        ("the step took 12.5 ms (38 % of it)", "the step took 12.5 ms (38 % of it)"),
        ("SLOWER 634 ms vs 387 ms a step, +64 % [+60.0, +69.3]",) * 2,
        ("see /data/run.json then", "see (hidden) then"),
        ("see /da ta/zq run.x", "see (hidden)"),
        (r"at C:\users\ada", "at (hidden)"),
        ("with ada@example.org, and 10.0.0.7", "with (hidden) and (hidden)"),
        (f"with {TOKEN} in it", "with (hidden) in it"),
        ("'zq' waits for \"Q\"", "(hidden) waits for (hidden)"),
        ("moon box 7.pt.trace.json: not a trace", "(hidden) not a trace"),
        ("step=zq and rank 3", "(hidden) and rank 3"),
        ("ms of s", "(hidden) of (hidden)"),
        ("torch 2.13.0+cpu, 2.13.0+zq", "torch 2.13.0+cpu, (hidden)"),
        ("cuda (NVIDIA H200)", "cuda (NVIDIA H200)"),
        ("customer 4915112345678", "(hidden)"),
        ("set needless_reshard_after_forward", "set needless_reshard_after_forward"),
        ("the\u00a0step\tzq", "(hidden)"),
    ],
)
def test_of_a_text_the_words_stay_that_are_ours(own: OwnWords, text: str, scrubbed: str) -> None:
    assert StandIns(own).scrubbed(text) == scrubbed


def test_without_a_source_to_read_words_from_nothing_stays() -> None:
    assert StandIns().scrubbed("rank zq waits 3 ms") == "(hidden) 3 ms"


@pytest.mark.parametrize("word", ["a", "a/", "a.", "a@a.", "A1-", "a "])
def test_a_text_without_end_is_cut_and_takes_no_time(own: OwnWords, word: str) -> None:
    assert len(StandIns(own).scrubbed(word * 300_000)) < 3000


def test_names_are_translated_whole_and_stand_ins_are_not_taken_for_names(own: OwnWords) -> None:
    names = StandIns(own)
    given = [names.of(name, "module") for name in ("encoder.zq block", "q1", "waits", "module-9")]
    assert given == ["module-1", "module-2", "module-3", "module-4"]
    assert names.scrubbed("encoder.zq block waits for q1") == "module-1 waits for module-2"
    assert names.scrubbed("(module-9), module-7") == "(module-4), (hidden)"
    assert names.scrubbed("my-encoder.zq block-x") == "(hidden)"


def test_groups_keep_their_ranks() -> None:
    names = StandIns()
    assert redact_group("0,1,2", names) == "0,1,2"
    assert redact_group("0,1#secret mesh", names) == "0,1#group-1"
    assert redact_group("pg:secret", names) == "group-2"


def test_the_same_bundle_gives_the_same_file(bundle: Bundle) -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        write_bundle(bundle, file)
    assert files[0].getvalue() == files[1].getvalue()
    with zipfile.ZipFile(files[0]) as archive:
        assert archive.namelist() == [part.name for part in bundle.parts]
        assert json.loads(archive.read("bundle.json"))["schema"] == "zprof.bundle/1"
        assert msgspec.json.decode(archive.read("run.json"), type=RunManifest).world_size == 4


def test_the_names_do_not_go_where_the_bundle_goes(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (target := tmp_path / "ticket.zip").write_text("mine")
    same = str(tmp_path / "x" / ".." / "ticket.zip")
    (tmp_path / "x").mkdir()
    assert main(["bundle", str(run.path), "-o", str(target), "--names", same, "--force"]) == 2
    assert target.read_text() == "mine"
    assert "name another file for --names" in capsys.readouterr().err


def test_the_command_says_what_is_in_it_and_overwrites_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zprof.integrations.doctor.examine", lambda: DOCTOR)
    target, names = tmp_path / "ticket.zip", tmp_path / "names.json"
    assert main(["bundle", str(run.path), "-o", str(target), "--list"]) == 0
    listed = capsys.readouterr().out
    assert not target.exists()
    assert main(["bundle", str(run.path), "-o", str(target), "--names", str(names)]) == 0
    assert capsys.readouterr().out == listed
    assert "report.json" in listed
    assert "environment.HF_TOKEN" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert json.loads(names.read_text())["gpu-box-7"] == "host-1"
    assert main(["bundle", str(run.path), "-o", str(target)]) == 2
    assert "exists" in capsys.readouterr().err
