"""A run can be read while its ranks write it: what was flushed is there, and nothing is called damaged."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.growing_run import GrowingRun
from zprof.base.errors import BadInput
from zprof.run.reader import Run
from zprof.run.writer import RankWriter

ROUNDS = 30


def marks(count: int) -> dict[str, list[object]]:
    return {
        "time_ns": list(range(count)),
        "kind": ["a"] * count,
        "number": list(range(count)),
        "name": [""] * count,
    }


def flush(writer: RankWriter, status: str = "partial") -> None:
    writer.finish(memory_steps=[], time_steps=[0], gaps=[], status=status)


def replace_table(writer: RankWriter) -> None:
    writer.write_table("mark", marks(9))
    flush(writer)


def replace_tail(writer: RankWriter) -> None:
    writer.replace_tail("mark", marks(1))
    flush(writer)


def merge(writer: RankWriter) -> None:
    writer.merge_parts("mark", marks(1))
    flush(writer, "complete")


@pytest.mark.parametrize("change", [replace_table, replace_tail, merge])
def test_what_was_written_since_the_run_was_opened_is_read(
    tmp_path: Path, change: Callable[[RankWriter], None]
) -> None:
    [writer] = GrowingRun(tmp_path, 1).writers
    if change is replace_table:
        writer.write_table("mark", marks(1))
    else:
        writer.append("mark", marks(5))
        writer.replace_tail("mark", marks(2))
    flush(writer)
    run = Run(tmp_path)
    assert run.ranks == (0,)
    change(writer)
    assert len(run.table(0, "mark")) in (6, 9)


def test_a_run_is_readable_at_any_moment_of_its_writing(tmp_path: Path) -> None:
    growing, ended = GrowingRun(tmp_path, 1), threading.Event()
    [writer] = growing.writers
    writer.append("mark", marks(3))
    flush(writer)

    def write() -> None:
        for _ in range(ROUNDS):
            writer.append("mark", marks(3))
            writer.replace_tail("mark", marks(2))
            flush(writer)
            writer.merge_parts("mark", marks(1))
            flush(writer)
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    reads = 0
    try:
        while not ended.is_set():
            run = Run(tmp_path)
            reads += len(run.table(0, "mark")) > 0
    finally:
        thread.join()
    assert reads


def test_a_folder_without_a_manifest_yet_is_no_damage(tmp_path: Path) -> None:
    growing = GrowingRun(tmp_path, 1)
    (growing.writers[0].folder / "rank.json").unlink()
    assert Run(tmp_path).ranks == ()


def test_a_table_that_changed_without_its_writer_is_damaged(tmp_path: Path) -> None:
    [writer] = GrowingRun(tmp_path, 1).writers
    writer.write_table("mark", marks(3))
    flush(writer)
    (writer.folder / "mark.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput):
        Run(tmp_path).table(0, "mark")
