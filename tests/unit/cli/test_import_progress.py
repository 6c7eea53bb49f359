"""The progress of an import: by the bytes of one file, with the stage, and only on a terminal."""

import threading

import pytest

from zprof.cli import console
from zprof.cli.progress import import_progress

FILE_BYTES = 100 << 20


def read_a_file() -> None:
    threads_before = threading.active_count()
    with import_progress() as progress:
        progress.start(1, FILE_BYTES)
        progress.report_bytes(FILE_BYTES // 2)
        progress.report_bytes(FILE_BYTES)
        assert threading.active_count() == threads_before  # or no process could be forked
        progress.finish_rank()


def test_the_bar_moves_within_a_file_and_names_the_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "are_terminals", lambda *streams: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    read_a_file()
    shown = capsys.readouterr().err
    assert shown.index("52.4/104.9") < shown.index("104.9/104.9")
    assert shown.index("reading") < shown.index("writing")


def test_nothing_is_printed_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    read_a_file()
    assert capsys.readouterr() == ("", "")
