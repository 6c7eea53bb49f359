"""Step time, peak memory and bytes moved of the reference engine against DDP, DDP + ZRO and FSDP2.

python -m benchmarks.engine [--quick] [--dtype bfloat16] [--rounds 12] [--output FILE]

Prints a table of ratios and writes all figures with their conditions into benchmarks/results/.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.steps.launch import RanksFailed, run_pass
from benchmarks.steps.plan import BFLOAT16, FLOAT32, QUICK, Plan, pairs_of
from benchmarks.steps.report import NOT_MEASURED, disagreements, pair_results, table
from tests.support import exact_counter

SCHEMA = "zprof.benchmark.engine/1"
RESULTS = Path(__file__).with_name("results")
PASS_TIMEOUT_S = 1800.0
#: bfloat16 has 8 bits: how an engine rounds its weights shows in the third digit of a loss.
LOSS_TOLERANCE = {FLOAT32: 1e-4, BFLOAT16: 2e-2}


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    """Run both passes; everything that is kept.

    Raises:
        RanksFailed: ranks ended without a result.
    """
    result: dict[str, Any] = {"schema": SCHEMA, "device": "cpu", "conditions": conditions()}
    result["plan"] = plan.as_dict()
    reason = None if exact_counter.compiler() else "no C compiler: the exact counter cannot be built"
    counted = None
    if reason is None:
        library = exact_counter.build(folder)
        counted = run_pass("count", plan, folder, timeout_s=PASS_TIMEOUT_S, preload=library)
    timed = run_pass("time", plan, folder, timeout_s=PASS_TIMEOUT_S)
    result["conditions"]["load_average_after"] = load_average()
    result["pairs"] = pair_results(pairs_of(plan.dtype), timed, counted)
    result["memory"] = f"{NOT_MEASURED}: {reason}" if reason else "exact counter of libc10's CPU allocator"
    result["disagreements"] = disagreements(timed, counted, tolerance=LOSS_TOLERANCE[plan.dtype])
    result["ranks"] = {"timed": timed, "counted": counted}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write: 0 fine, 1 if the contenders do not do the same work or a rank failed."""
    options = _parser().parse_args(arguments)
    sizes = dict(QUICK) if options.quick else {}
    if options.rounds is not None:
        sizes["rounds"] = options.rounds
    plan = Plan(dtype=options.dtype, **sizes)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(plan, Path(folder))
    except RanksFailed as failed:
        print(f"benchmark: {failed}", file=sys.stderr)
        return 1
    print(_headline(result))
    print(table(result["pairs"]))
    for line in result["disagreements"]:
        print(f"benchmark: {line}", file=sys.stderr)
    if options.output is not None or not options.quick:
        path = options.output or RESULTS / f"engine-{result['device']}-{plan.dtype}-{today()}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 1 if result["disagreements"] else 0


def _headline(result: dict[str, Any]) -> str:
    plan, at = result["plan"], result["conditions"]
    model = f"GPT {plan['layers']} x {plan['hidden']}, vocabulary {plan['vocabulary']}"
    return (
        f"{plan['ranks']} gloo ranks, {plan['dtype']}, {model}, batch {plan['batch']} x {plan['context']}, "
        f"{plan['rounds']} rounds of 2 x {plan['steps']} steps\n"
        f"torch {at['torch']}, {at['cpu']}, {at['cores']} cores, load {at['load_average']} before and "
        f"{at['load_average_after']} after.  Ratios: below 1 the engine needs less."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds; keeps no file")
    parser.add_argument("--dtype", choices=(FLOAT32, BFLOAT16), default=FLOAT32)
    parser.add_argument("--rounds", type=int, help="paired rounds; 6 or more for an interval")
    parser.add_argument("--output", type=Path, help="where to write the figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
