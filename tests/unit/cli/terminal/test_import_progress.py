"""The bar of an import: on a terminal only."""

import io
import sys

import pytest

from zprof.cli.progress import import_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, total_bytes: int) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with import_progress() as watch:
        watch.begin(3, total_bytes)
        watch.bytes_read(total_bytes // 2)
        watch.rank_done()
        watch.rank_done()
    return stream.getvalue()


def test_a_terminal_shows_ranks_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch, Terminal(), 80_000_000)
    assert "importing, 2 of 3 ranks" in shown
    assert "40.0/80.0 MB" in shown


def test_a_log_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, io.StringIO(), 80_000_000) == ""


def test_a_small_import_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "importing" not in watched(monkeypatch, Terminal(), 1000)
