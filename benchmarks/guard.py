"""Hold what an answer costs: six ratios of whole processes, each within 1.5 times of the committed one.

    python -m benchmarks.guard            prints a table, and exits with 1 if a ratio is above its limit
    python -m benchmarks.guard --update   writes benchmarks/guard.json, on a machine that does nothing else

Two minutes on two cores.  Ratios, so that a faster machine changes little; of processor time with all
children, because the clock's time of a process of a second doubles when something else runs beside it.  What
that cannot see: two processes that no longer overlap; ``benchmarks.answer`` takes the clock's.  The report of
64 ranks is compared with their import, whose processes read the same files.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.conditions import conditions, load_average
from benchmarks.contenders import (
    Comparison,
    Group,
    Medians,
    Quantity,
    compare,
    format_ratio,
    run_group,
)
from benchmarks.inputs import simulate_traces, write_trace
from benchmarks.whole_commands import (
    ANSWER,
    IMPORTS,
    KEPT_ANSWER,
    RECORDED_RUN,
    make_answers,
    make_command,
    make_imports,
    make_json_load,
)

COMMITTED = Path(__file__).parent / "guard.json"
MAX_GROWTH = 1.5
_ROUNDS, _RANKS, _MEGABYTES = 3, 64, 50
_TRACE = f"a trace of {_MEGABYTES} MB"
_RAW, _PARSE = f"diagnose {_TRACE}", f"json.load of {_TRACE}"
_IMPORT, _REPORT = f"import {_RANKS} ranks", f"report {_RANKS} ranks"
COMPARISONS = (
    Comparison(contender=ANSWER, peer=IMPORTS, quantity=Quantity.CPU),
    Comparison(contender=_RAW, peer=_PARSE, quantity=Quantity.CPU),
    Comparison(contender=_REPORT, peer=_IMPORT, quantity=Quantity.CPU),
    Comparison(contender=_RAW, peer=_PARSE, quantity=Quantity.MEMORY),
    Comparison(contender=_REPORT, peer=IMPORTS, quantity=Quantity.MEMORY),
    Comparison(contender=KEPT_ANSWER, peer=IMPORTS, quantity=Quantity.MEMORY),
)
_NAMES = {Quantity.CPU: "processor time", Quantity.MEMORY: "peak memory"}


class Verdict(Struct, frozen=True, kw_only=True):
    """A measured ratio and its limit; ``limit`` is None, and nothing holds, if none was committed."""

    name: str
    ratio: float
    limit: float | None

    @property
    def holds(self) -> bool:
        """Whether the ratio is at most its limit."""
        return self.limit is not None and self.ratio <= self.limit


def judge(measured: Mapping[str, float], committed: Mapping[str, float]) -> list[Verdict]:
    """Return each measured ratio with the limit that follows from the committed one."""
    return [
        Verdict(name=name, ratio=ratio, limit=committed[name] * MAX_GROWTH if name in committed else None)
        for name, ratio in measured.items()
    ]


def plan(folder: Path) -> Group:
    """Make the inputs, and return the processes."""
    trace, traces, run = folder / "trace.json.gz", folder / "traces", folder / "job.zprof"
    write_trace(trace, _MEGABYTES)
    simulate_traces(traces, _RANKS)
    return Group(
        name="guard",
        contenders=(
            make_imports(),
            *make_answers(ANSWER, "diagnose", RECORDED_RUN),
            make_command(_RAW, "diagnose", trace),
            make_json_load(trace, _TRACE),
            make_command(_IMPORT, "import", traces, "-o", run, "--force"),
            make_command(_REPORT, "report", run),
        ),
        comparisons=COMPARISONS,
    )


def compute_ratios(medians: Mapping[str, Medians]) -> dict[str, float]:
    """Return the ratio of each comparison by its name."""
    rows = ((comparison, compare(comparison, medians)) for comparison in COMPARISONS)
    return {
        f"{comparison.contender} / {comparison.peer}, {_NAMES[comparison.quantity]}": row.ratio
        for comparison, row in rows
        if row is not None and row.ratio is not None
    }


def format_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Return a line for each ratio."""
    width = max(len(verdict.name) for verdict in verdicts)
    return "\n".join(
        f"{'ok  ' if verdict.holds else 'FAIL'}  {verdict.name:{width}}  {format_ratio(verdict.ratio):>7}  "
        + ("not committed" if verdict.limit is None else f"limit {format_ratio(verdict.limit)}")
        for verdict in verdicts
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--update", action="store_true", help=f"write {COMMITTED.name} instead of judging")
    options = parser.parse_args()
    found_on = conditions()
    with tempfile.TemporaryDirectory(prefix="zprof-guard-") as folder:
        ratios = compute_ratios(run_group(plan(Path(folder)), _ROUNDS, Path(folder)))
    if options.update:
        found_on["load_average_after"] = load_average()
        content = {"conditions": found_on, "rounds": _ROUNDS, "ratios": ratios}
        COMMITTED.write_text(json.dumps(content, indent=1) + "\n")
    verdicts = judge(ratios, json.loads(COMMITTED.read_text())["ratios"] if COMMITTED.exists() else {})
    print(format_verdicts(verdicts))
    broken = [verdict for verdict in verdicts if not verdict.holds]
    if broken:
        print(
            f"{len(broken)} of {len(verdicts)} above {MAX_GROWTH} times the committed ratio. Run again on a "
            f"quiet machine; if the change is meant, python -m benchmarks.guard --update"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
