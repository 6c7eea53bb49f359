"""Make what the pages show.  ``make pictures`` records first; this module alone draws what was recorded.

The examples of all pages, the pictures of the terminal UI and the memory timeline come from the runs of
docs/pictures/runs.  tests/integration/docs holds all of them to what zprof prints and draws today.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from docs.tools.examples import PAGES, rewrite_page
from docs.tools.recordings import OUTPUTS, PROGRAM, RUNS, record_runs
from docs.tools.snapshots import write_snapshots
from tests.support.tui_pictures import draw_screens
from zprof.cli import main as run_zprof

PICTURES = RUNS.parent
_REPORTS = {
    "memory-zero3.svg": ("report", "zprof-demo/zero3.zprof", "--baseline", "zprof-demo/ddp.zprof"),
}


def main() -> None:
    """Record if asked to, then draw every picture and fill in every example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="record the runs anew; takes about two minutes")
    if parser.parse_args().record:
        record_runs()
    for name, content in draw_pictures():
        (PICTURES / name).write_text(content, encoding="utf-8")
    for page in PAGES:
        with open_workplace() as folder:
            rewrite_page(page, folder, read_recorded_outputs())


def draw_pictures() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each picture."""
    with open_workplace() as folder:
        demo = folder / "zprof-demo"
        yield from draw_screens(demo / "zero3.zprof", demo / "ddp.zprof")
        for name, command in _REPORTS.items():
            target = folder / name
            run_zprof([*(str(folder / part) if "/" in part else part for part in command), "-o", str(target)])
            yield name, target.read_text(encoding="utf-8")


@contextmanager
def open_workplace() -> Iterator[Path]:
    """Yield a folder with the runs, the program and the snapshots, as of somebody who followed the pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(RUNS, folder, dirs_exist_ok=True)
        shutil.copy(PROGRAM, folder)
        write_snapshots(folder)
        yield folder


def read_recorded_outputs() -> Mapping[str, str]:
    """Return what the recording commands printed, by command."""
    return json.loads(OUTPUTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
