"""The commands that a user waits for, and their peers, as processes to measure."""

import importlib.util
from pathlib import Path

from benchmarks.contenders import Cache, Contender
from benchmarks.processes import ROOT

#: A run of two ranks, recorded by ``zprof demo``.
RECORDED_RUN = ROOT / "docs/pictures/runs/zprof-demo/zero3.zprof"
START = "python -c pass"
IMPORTS = "the bare import of pandas and pyarrow"
ANSWER, KEPT_ANSWER = "diagnose a recorded run", "diagnose a recorded run, kept"
_HTA = (
    "import sys; from hta.trace_analysis import TraceAnalysis; "
    "TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='').get_comm_comp_overlap(visualize=False)"
)
_JSON = "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"
_TUI = "import sys; from benchmarks.tui import paint_answer; paint_answer(sys.argv[1])"


def make_start() -> Contender:
    """Return the smallest Python process."""
    return Contender(name=START, arguments=("-c", "pass"))


def make_imports() -> Contender:
    """Return the bare import, the unit of start-up."""
    return Contender(name=IMPORTS, arguments=("-c", "import pandas, pyarrow.parquet"))


def make_command(
    name: str, *arguments: str | Path, cache: Cache = Cache.FRESH, exit_code: int = 0
) -> Contender:
    """Return a ``zprof`` command."""
    command = ("-m", "zprof", *map(str, arguments))
    return Contender(name=name, arguments=command, cache=cache, exit_code=exit_code)


def make_answers(name: str, *arguments: str | Path) -> tuple[Contender, Contender]:
    """Return a command with nothing kept, and the same again, from the cache."""
    return make_command(name, *arguments), make_command(f"{name}, kept", *arguments, cache=Cache.KEPT)


def make_json_load(trace: Path, name: str) -> Contender:
    """Return the parse of a compressed trace alone."""
    return Contender(name=f"json.load of {name}", arguments=("-c", _JSON, str(trace)))


def make_hta(trace: Path, name: str) -> tuple[Contender, ...]:
    """Return HTA's parse and overlap; nothing if HTA is not installed."""
    if importlib.util.find_spec("hta") is None:
        return ()
    return (Contender(name=f"HTA on {name}", arguments=("-c", _HTA, str(trace))),)


def make_first_screens(run: Path, name: str) -> tuple[Contender, Contender]:
    """Return the terminal UI until the verdict's numbers are on the screen, twice."""
    command = ("-c", _TUI, str(run))
    return (
        Contender(name=name, arguments=command),
        Contender(name=f"{name}, kept", arguments=command, cache=Cache.KEPT),
    )
