"""The real program in a real terminal of 80 x 24: by keys alone, and the terminal is as it was."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pty_terminal import PtyTerminal

DATA = Path(__file__).parents[2] / "data" / "tui"
RUN, BASELINE = str(DATA / "zero3"), str(DATA / "ddp")
ALTERNATE_ON, ALTERNATE_OFF, CURSOR_ON = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Recorded(PtyTerminal):
    """``zprof tui`` on a terminal that keeps what steers it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        super().__init__([sys.executable, "-m", "zprof", "tui", *arguments], os.environ | environment)

    @property
    def written(self) -> str:
        return self._bytes.decode(errors="replace")


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    arguments, environment = request.param
    started = Recorded(*arguments, **environment)
    yield started
    started.close()


@pytest.mark.parametrize(
    "terminal", [([RUN, "--baseline", str(DATA / "ddp")], {})], indirect=True, ids=["run"]
)
def test_screens_and_help_open_by_keys_and_the_terminal_is_restored(terminal: Recorded) -> None:
    terminal.wait_for("SLOWER")
    terminal.press("\x1bOP")  # F1
    terminal.wait_for("all keys")
    terminal.press("3")  # closes what is open, too; esc and a digit at once would be alt and a digit
    terminal.wait_for("Message sizes")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.written.count(ALTERNATE_ON) == terminal.written.count(ALTERNATE_OFF) == 1
    assert CURSOR_ON in terminal.written[-200:]
    assert "Traceback" not in terminal.written


@pytest.mark.parametrize("terminal", [([RUN, "--ascii"], {"NO_COLOR": "1"})], indirect=True, ids=["plain"])
def test_no_colour_and_no_byte_above_ascii_is_written_until_ctrl_c(terminal: Recorded) -> None:
    terminal.wait_for("zero3")
    terminal.press("\x03")
    assert terminal.end() == 0
    assert terminal.written.isascii()
    codes = re.findall(r"\x1b\[([0-9;]*)m", terminal.written)
    assert not {code for found in codes for code in found.split(";") if re.fullmatch(r"[349]\d|10\d", code)}
    assert ALTERNATE_OFF in terminal.written
    assert "Traceback" not in terminal.written


@pytest.mark.parametrize("terminal", [(["/nowhere/run"], {})], indirect=True, ids=["missing"])
def test_a_missing_run_is_one_line_and_no_screen(terminal: Recorded) -> None:
    assert terminal.end() == 2
    assert ALTERNATE_ON not in terminal.written
    assert terminal.written.count("\n") == 1
    assert "/nowhere/run" in terminal.written


def test_errors_into_a_file_leave_the_screen_on_the_terminal(tmp_path: Path) -> None:
    """Textual draws on stderr."""
    errors = tmp_path / "errors"
    command = f'"{sys.executable}" -m zprof tui "{RUN}" 2> "{errors}"'
    terminal = PtyTerminal(["sh", "-c", command], os.environ)
    try:
        terminal.wait_for("zero3")
        terminal.press("q")
        assert terminal.end() == 0
        assert "\x1b" not in errors.read_text()
    finally:
        terminal.close()
