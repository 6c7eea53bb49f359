"""The result of both passes as one value for JSON, and as one table for people."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.steps.plan import Pair
from benchmarks.steps.ratios import paired_ratio

NOT_MEASURED = "not measured"
_HEAD = ("engine / peer", "overlap", "step time", "95 % interval", "CPU time", "peak memory", "bytes moved",
         "peer's step", "peer's peak", "peer moves")  # fmt: skip


def pair_results(
    pairs: Sequence[Pair], timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """One entry for each pair.  ``timed`` and ``counted`` are one entry for each rank; None: not measured."""
    return [_pair_result(pair, timed, counted) for pair in pairs]


def _pair_result(
    pair: Pair, timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    wall = timed[0]["wall_ns"]  # equal on all ranks: of the slowest
    step_time = paired_ratio(wall[pair.subject], wall[pair.peer])
    cpu = paired_ratio(cpu_of_all(timed, pair.subject), cpu_of_all(timed, pair.peer))
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
            subject, peer = (largest(counted, name, what) for name in (pair.subject, pair.peer))
            result |= {ratio: subject / peer, f"peer_{what}": peer}
    return result


def cpu_of_all(timed: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """CPU time of a step in each round, summed over the ranks."""
    return [sum(round_) for round_ in zip(*(rank["cpu_ns"][name] for rank in timed), strict=True)]


def largest(counted: Sequence[Mapping[str, Any]], name: str, what: str) -> float:
    """Of the rank that needs the most."""
    return max(float(rank[name][what]) for rank in counted)


def disagreements(
    timed: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]] | None, *, tolerance: float
) -> list[str]:
    """Why the comparison may not be fair, a line each; none if all is well.

    All contenders must compute the same losses, within ``tolerance`` (relative), and the engine's own count
    of bytes must be that from outside.
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


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Ratios below 1 are in the engine's favour."""
    rows = [_HEAD, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    aligned = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([aligned[0], "-" * max(map(len, aligned)), *aligned[1:]])


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    interval = result["step_time_interval"]
    return (
        f"{result['subject']} / {result['peer']}",
        "equal" if result["equal_overlap"] else "own",
        f"{result['step_time_ratio']:.3f}",
        "too few rounds" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}",
        f"{result['cpu_time_ratio']:.3f}",
        _ratio(result["peak_memory_ratio"]),
        _ratio(result["bytes_moved_ratio"]),
        f"{result['peer_step_ms']:.1f} ms",
        _mebibytes(result.get("peer_peak_bytes")),
        _mebibytes(result.get("peer_moved_bytes")),
    )


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.3f}"


def _mebibytes(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value / 2**20:.1f} MiB"
