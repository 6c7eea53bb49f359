"""The note that ranks are writing: once, and only if it takes longer than a moment."""

from pathlib import Path

import pytest

from zprof.collectors.record.launch.record import WritingObserver
from zprof.collectors.record.launch.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_a_rank_that_writes_for_two_polls_is_told_once(session: Session) -> None:
    notes: list[str] = []
    observer = WritingObserver(session, Path("my run"), notes.append)
    observer.poll()
    for rank in (1, 0):
        session.set_writing(rank, True)
    observer.poll()
    assert notes == []
    session.set_writing(1, False)
    for _ in range(3):
        observer.poll()
    assert len(notes) == 1
    assert "rank 0" in notes[0]


def test_a_write_between_two_polls_is_not_told(session: Session) -> None:
    notes: list[str] = []
    observer = WritingObserver(session, Path("my run"), notes.append)
    for rank in (0, 1):
        session.set_writing(rank, True)
        observer.poll()
        session.set_writing(rank, False)
    observer.poll()
    assert notes == []


def test_files_of_others_in_the_folder_do_not_count(session: Session, tmp_path: Path) -> None:
    (tmp_path / "writing.of-something").touch()
    session.set_writing(3, True)
    assert session.list_writing_ranks() == [3]


def test_each_stall_is_told_once_with_the_command_that_explains_it(session: Session) -> None:
    notes: list[str] = []
    observer = WritingObserver(session, Path("my run"), notes.append)
    session.report_stall(1, 10.2)
    for _ in range(2):
        observer.poll()
    assert len(notes) == 1
    assert "zprof diagnose 'my run'" in notes[0]
    session.report_stall(1, 11.0)
    observer.poll()
    assert len(notes) == 2
