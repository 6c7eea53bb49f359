"""A diagnosis on a real terminal of 80 columns: the page of a pipe, with colour if the user wants it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pty_terminal import PtyTerminal

DATA = Path(__file__).parents[2] / "data" / "tui"
COMMAND = [sys.executable, "-m", "zprof", "diagnose", str(DATA / "zero3"), str(DATA / "ddp")]
HIDDEN = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}
STATUS = "\x1b[1;31m✗ SLOWER\x1b[0m"


class Written(PtyTerminal):
    """A terminal that keeps the control sequences."""

    @property
    def written(self) -> str:
        return self._bytes.decode()


@pytest.mark.parametrize(("wish", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_the_page_of_a_pipe_and_its_colours(wish: dict[str, str], is_coloured: bool) -> None:
    terminal = Written(COMMAND, ENVIRONMENT | wish)
    assert terminal.end() == 0
    terminal.close()
    assert (STATUS in terminal.written) is ("\x1b[" in terminal.written) is is_coloured
    piped = subprocess.run(COMMAND, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert re.sub(r"\x1b\[[\d;]+m", "", terminal.written).replace("\r\n", "\n") == piped
