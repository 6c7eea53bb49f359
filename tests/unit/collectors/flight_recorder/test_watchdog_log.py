"""Lines of the NCCL watchdog in a log as a dump of each rank."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.flight_dumps import EVIL, make_dump
from zprof.cli import main
from zprof.collectors.flight_recorder.watchdog_log import read_watchdog_log
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.errors import BadInput
from zprof.run.reader import Run, load

TIMEOUT = (
    "[rank{rank}]:[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632] [Rank {inner}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=_ALLGATHER_BASE, NumelIn=1259621, "
    "NumelOut=2519242, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
)
NEW = (
    "[rank{rank}]:[E709 17:05:38.162814866 ProcessGroupNCCL.cpp:2271] [PG ID 2 PG GUID 37(mesh_tp) Rank "
    "{inner}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: 20589, "
    "last completed work: 20584\n"
)
UNNAMED = NEW.replace("37(mesh_tp)", "37")
STARTED = NEW.replace(", last completed", ", last started work: -1, last completed")
OLD = (
    "[rank{rank}]:[E1003 18:37:01.833575187 ProcessGroupNCCL.cpp:1664] [PG 2 (mesh_tp) Rank {inner}] "
    "Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: "
    "20589, last completed NCCL work: 20584.\n"
)
STACK = (
    "[rank{rank}]:[E710 18:00:32.427 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: \n"
    "#0 all_reduce from /torch/distributed/distributed_c10d.py:3174\n"
    "#1 train_step from /home/user/train.py:77\n\n"
)
FORMS = {"new": (NEW, "37", "mesh_tp"), "without name": (UNNAMED, "37", "")} | {
    "with started": (STARTED, "37", "mesh_tp"),
    "torch 2.4": (OLD, "2", "mesh_tp"),
}


def log_text(failure: str = NEW) -> str:
    parts = []
    for rank, inner, seq in ((5, 1, 20585), (4, 0, 20586)):
        values = {"rank": rank, "inner": inner, "seq": seq}
        parts += [part.format(**values) for part in (TIMEOUT, failure, STACK)]
    return "step 7 loss 2.3\n" * 50 + "".join(parts) + "torchrun: exit\n"


def read_rows(run: Run, rank: int, table: str) -> list[dict[str, Any]]:
    return run.table(rank, table).to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_a_log_gives_the_operation_the_group_and_how_far_it_got(form: str, tmp_path: Path) -> None:
    failure, group, description = FORMS[form]
    (tmp_path / "job.log").write_text(log_text(failure))
    run = load(import_paths([tmp_path / "job.log"], tmp_path / "r.zprof").run)
    assert list(run.ranks) == [4, 5]
    (entry,) = read_rows(run, 5, "flight")
    kept = ("operation", "group", "group_id", "sequence", "input_sizes", "timeout_ms", "state")
    assert [entry[key] for key in kept] == [
        *("_all_gather_base", group, 2, 20585, "[[1259621]]", 600_000, "scheduled")
    ]
    (row,) = read_rows(run, 5, "flight_group")
    assert (row["last_enqueued"], row["last_completed"], row["description"]) == (20589, 20584, description)
    assert [frame["line"] for frame in read_rows(run, 4, "flight_stack")] == [3174, 77]


def test_a_log_that_starts_with_the_rank_is_no_json(tmp_path: Path) -> None:
    text = log_text()
    (tmp_path / "job.log").write_text(text[text.index("[rank") :])
    assert len(import_paths([tmp_path / "job.log"], tmp_path / "r.zprof").files) == 2


def test_a_dump_of_a_rank_comes_before_what_a_log_says(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(log_text())
    (tmp_path / "dump_5").write_bytes(pickle.dumps(make_dump(ranks=range(8)), protocol=2))
    paths = [tmp_path / "job.log", tmp_path / "dump_5"]
    imported = import_paths(paths, tmp_path / "r.zprof")
    assert [(file.rank, file.path) for file in imported.files] == [(4, paths[0]), (5, paths[1])]
    run = load(imported.run)
    assert len(read_rows(run, 5, "flight")) == 3
    assert run.manifest.world_size == 8


def test_a_log_without_the_lines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    for content in (b"step 7\n" * 10, TIMEOUT.format(rank=0, inner=0, seq=1).encode()):
        path.write_bytes(content)
        assert main(["import", str(path), "-o", str(tmp_path / "r.zprof")]) == 2
        err = capsys.readouterr().err
        assert str(path) in err
        assert err.count("\n") == 1


HOSTILE = {
    "long line": b"[rank0]: [Rank 0] Watchdog caught " + b"x" * 5_000_000 + b"\n",
    "many spaces": b"[PG ID 0 PG GUID 0(" + b" " * 200_000 + b"\n",
    "many ranks": b"".join(TIMEOUT.format(rank=rank, inner=0, seq=rank).encode() for rank in range(100_001)),
    "endless numbers": TIMEOUT.format(rank=0, inner=0, seq="9" * 300).encode(),
    "frames without end": STACK.format(rank=0).encode() + b"#1 f from a.py:1\n" * 20_000,
    "binary": bytes(range(256)) * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_log_is_refused(name: str) -> None:
    with pytest.raises(BadInput) as error:
        read_watchdog_log(io.BytesIO(HOSTILE[name]))
    assert error.value.message.isprintable()


def test_names_in_a_log_are_data(tmp_path: Path) -> None:
    evil = EVIL.encode("utf-8", "replace").replace(b"\n", b"").replace(b")", b"")
    text = (TIMEOUT + NEW).format(rank=0, inner=0, seq=5).encode().replace(b"mesh_tp", evil)
    (tmp_path / "job.log").write_bytes(text)
    run = load(import_paths([tmp_path / "job.log"], tmp_path / "r.zprof").run)
    assert read_rows(run, 0, "flight_group")[0]["description"] == evil.decode()
