"""Step time, peak memory and bytes moved of the reference engine against DDP, DDP + ZRO and FSDP2.

python -m benchmarks.engine [--quick] [--dtype bfloat16] [--rounds 12] [--output FILE]

Prints a table of ratios and writes all figures with their conditions into benchmarks/results/.

A ratio is the median over paired rounds, with an interval that assumes nothing about the noise. With n
independent rounds the k-th smallest and the k-th largest ratio enclose the median of what the rounds are
drawn from with probability 1 - 2 P(Binomial(n, 1/2) < k); of all k with at least 95 % the largest is
taken. Fewer than 6 rounds have no such interval.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.steps.launch import BFLOAT16, FLOAT32, QUICK, Pair, Plan, RanksFailed, list_pairs, run_pass
from tests.support import exact_counter

SCHEMA = "zprof.benchmark.engine/1"
RESULTS = Path(__file__).with_name("results")
PASS_TIMEOUT_S = 1800.0
#: bfloat16 has 8 bits: how an engine rounds its weights shows in the third digit of a loss.
LOSS_TOLERANCE = {FLOAT32: 1e-4, BFLOAT16: 2e-2}


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    """Run both passes and return all results.

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
    result["pairs"] = compute_pair_results(list_pairs(plan.dtype), timed, counted)
    result["memory"] = f"{NOT_MEASURED}: {reason}" if reason else "exact counter of libc10's CPU allocator"
    result["disagreements"] = find_disagreements(timed, counted, tolerance=LOSS_TOLERANCE[plan.dtype])
    result["ranks"] = {"timed": timed, "counted": counted}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; exit code 0 ok, 1 if the contenders do different work or a rank failed."""
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
    print(format_table(result["pairs"]))
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


NOT_MEASURED = "not measured"
_TABLE_HEAD = ("engine / peer", "overlap", "step time", "95 % interval", "CPU time",
         "peak memory", "bytes moved", "peer's step", "peer's peak", "peer moves")  # fmt: skip


def compute_pair_results(
    pairs: Sequence[Pair], timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return one entry per pair.  ``timed`` and ``counted`` have one entry per rank; None: not measured."""
    return [_compute_pair_result(pair, timed, counted) for pair in pairs]


def _compute_pair_result(
    pair: Pair, timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    wall = timed[0]["wall_ns"]  # equal on all ranks: that of the slowest
    step_time = compute_paired_ratio(wall[pair.subject], wall[pair.peer])
    cpu = compute_paired_ratio(sum_cpu_time(timed, pair.subject), sum_cpu_time(timed, pair.peer))
    result: dict[str, Any] = {
        "subject": pair.subject,
        "peer": pair.peer,
        "equal_overlap": pair.equal_overlap,
        "step_time_ratio": step_time.median,
        "step_time_interval": step_time.interval,
        "cpu_time_ratio": cpu.median,
        "peer_step_ms": median(wall[pair.peer]) / 1e6,
        "peak_memory_ratio": None,
        "bytes_moved_ratio": None,
    }
    if counted is not None:
        for what, ratio in (("peak_bytes", "peak_memory_ratio"), ("moved_bytes", "bytes_moved_ratio")):
            subject, peer = (max_over_ranks(counted, name, what) for name in (pair.subject, pair.peer))
            result |= {ratio: subject / peer, f"peer_{what}": peer}
    return result


def sum_cpu_time(timed: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the CPU time per step of each round, summed over the ranks."""
    return [sum(round_) for round_ in zip(*(rank["cpu_ns"][name] for rank in timed), strict=True)]


def max_over_ranks(counted: Sequence[Mapping[str, Any]], name: str, what: str) -> float:
    """Return the figure of the rank that needs the most."""
    return max(float(rank[name][what]) for rank in counted)


def find_disagreements(
    timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None, *, tolerance: float
) -> list[str]:
    """Return why the comparison may not be fair, one line each; empty if all is well.

    All contenders must compute the same losses, within ``tolerance`` (relative), and the engine's own byte
    count must match the count from outside.
    """
    lines = []
    for rank, result in enumerate(timed):
        losses = result["losses"]
        first = next(iter(losses))
        lines += [
            f"rank {rank}: losses of {name} are {losses[name]}, those of {first} are {losses[first]}"
            for name in losses
            if any(abs(a - b) > tolerance * abs(b) for a, b in zip(losses[name], losses[first], strict=True))
        ]
    for rank, result in enumerate(counted or ()):
        lines += [
            f"rank {rank}: {name} moves {seen['own_moved_bytes']} bytes, by the trace {seen['moved_bytes']}"
            for name, seen in result.items()
            if seen["own_moved_bytes"] not in (None, seen["moved_bytes"])
        ]
    return lines


def format_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table; ratios below 1 favour the engine."""
    rows = [_TABLE_HEAD, *(_format_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TABLE_HEAD))]
    aligned = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([aligned[0], "-" * max(map(len, aligned)), *aligned[1:]])


def _format_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    interval = result["step_time_interval"]
    return (
        f"{result['subject']} / {result['peer']}",
        "equal" if result["equal_overlap"] else "own",
        f"{result['step_time_ratio']:.3f}",
        "too few rounds" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}",
        f"{result['cpu_time_ratio']:.3f}",
        _format_ratio(result["peak_memory_ratio"]),
        _format_ratio(result["bytes_moved_ratio"]),
        f"{result['peer_step_ms']:.1f} ms",
        _format_mebibytes(result.get("peer_peak_bytes")),
        _format_mebibytes(result.get("peer_moved_bytes")),
    )


def _format_ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.3f}"


def _format_mebibytes(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value / 2**20:.1f} MiB"


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A paired ratio.  ``interval`` is None if there are too few rounds for one."""

    median: float
    interval: tuple[float, float] | None


def compute_paired_ratio(subject: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Return the ratio of each round's subject to the same round's peer.

    Raises:
        ValueError: the rounds do not pair up, or there are none.
    """
    if len(subject) != len(peer) or not subject:
        raise ValueError(f"{len(subject)} rounds of the subject and {len(peer)} of the peer do not pair up")
    ratios = sorted(one / other for one, other in zip(subject, peer, strict=True))
    k = find_interval_rank(len(ratios))
    interval = None if k is None else (ratios[k - 1], ratios[-k])
    return Ratio(median=median(ratios), interval=interval)


def find_interval_rank(rounds: int) -> int | None:
    """Return the k of the module's docstring, or None if there are too few rounds."""
    outside, found = 0.0, None
    for k in range(1, rounds // 2 + 1):
        outside += 2 * math.comb(rounds, k - 1) / 2**rounds
        if outside > 1 - CONFIDENCE:
            break
        found = k
    return found


if __name__ == "__main__":
    sys.exit(main())
