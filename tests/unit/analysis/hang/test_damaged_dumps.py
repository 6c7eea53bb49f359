"""What was not read accuses nobody, and is no all-clear."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hang_jobs import draw_job, write_dumps
from benchmarks.hangs import judge
from tests.support.real_traces import DUMPS
from zprof.collectors.read.pickle_sandbox import load_plain_data
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangStatus

Damage = Callable[[dict[str, Any]], object]


def garble(dump: dict[str, Any]) -> None:
    dump["entries"] = [{**entry, "state": 7} for entry in dump["entries"]] or [{}]


def garble_half(dump: dict[str, Any]) -> None:
    dump["entries"][::2] = [{}] * len(dump["entries"][::2])


def remove(dump: dict[str, Any]) -> None:
    dump["entries"] = None


def read_dumps(folder: Path) -> dict[str, dict[str, Any]]:
    dumps = {}
    for path in sorted(folder.glob("_dump_*")):
        with path.open("rb") as file:
            dumps[path.name] = load_plain_data(file, "dump")
    return dumps


def judge_damaged(dumps: dict[str, dict[str, Any]], damage: Damage, ranks: set[int], folder: Path) -> Hang:
    folder.mkdir(parents=True)
    for name, dump in dumps.items():
        if int(name.removeprefix("_dump_")) in ranks:
            damage(dump)
        (folder / name).write_bytes(pickle.dumps(dump, protocol=2))
    return judge(folder)


def list_accused(hang: Hang) -> set[int]:
    is_sure = hang.status is HangStatus.STUCK and hang.confidence is not Confidence.LOW
    return {culprit.rank for culprit in hang.culprits} if is_sure else set()


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the dumps are not beside the checkout")
@pytest.mark.parametrize("damage", [garble, garble_half, remove])
@pytest.mark.parametrize(("case", "culprits"), [("lock_gil_1st", {9, 14}), ("gpu_error_1st", {12, 14})])
def test_ranks_that_were_not_read_are_accused_of_nothing(
    case: str, culprits: set[int], damage: Damage, tmp_path: Path
) -> None:
    for rank in (0, 8, 13):
        ranks = {rank, 3, 15}
        hang = judge_damaged(read_dumps(DUMPS / case), damage, ranks, tmp_path / str(rank))
        assert hang.status is HangStatus.STUCK
        assert list_accused(hang) <= culprits
        assert set(hang.ranks_unread) == ranks


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the dumps are not beside the checkout")
@pytest.mark.parametrize("damage", [garble, remove])
@pytest.mark.parametrize("case", ["lock_gil_1st", "gpu_error_1st"])
def test_no_all_clear_from_what_was_not_read(case: str, damage: Damage, tmp_path: Path) -> None:
    hang = judge_damaged(read_dumps(DUMPS / case), damage, set(range(16)), tmp_path / "all")
    assert hang.status is HangStatus.UNKNOWN
    assert hang.ranks_unread == tuple(range(16))


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the dumps are not beside the checkout")
def test_the_dump_of_the_culprit_alone_is_no_all_clear(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "_dump_9").write_bytes((DUMPS / "lock_gil_1st" / "_dump_9").read_bytes())
    hang = judge(tmp_path / "d")
    assert hang.status is HangStatus.UNKNOWN
    assert hang.ranks_missing == tuple(rank for rank in range(16) if rank != 9)


@pytest.mark.parametrize("fault", ["shut_down", "running"])
def test_all_ranks_are_needed_to_say_that_nothing_is_wrong(fault: str, tmp_path: Path) -> None:
    paths = write_dumps(draw_job(20_005, fault), tmp_path)
    assert judge(tmp_path).status in (HangStatus.FINISHED, HangStatus.RUNNING)
    paths[-1].unlink()
    assert judge(tmp_path).status not in (HangStatus.FINISHED, HangStatus.RUNNING)
