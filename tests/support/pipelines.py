"""Operation timelines of pipelines with known durations: played here, independently of the replay."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.analysis.columns import Columns, Texts, make_column

Duration = Callable[[int, int, str, int, int], float]
_NAMES = {
    "dp_rank": "dp_rank",
    "stage": "stage",
    "rank": "rank",
    "step": "step",
    "operation": "optype",
    "start_ns": "start_ts",
    "duration_ns": "duration",
    "sequence": "seq_id",
    "chunk": "mc",
    "model_chunk": "gmc",
    "micro_batch": "mb_id",
}


def order_1f1b(stages: int, micro_batches: int, stage: int) -> list[tuple[str, int, int]]:
    """Kind, chunk and micro-batch of each computation of a stage, in order."""
    warm_up = min(stages - stage - 1, micro_batches)
    order = [("forward", 0, number) for number in range(warm_up)]
    for number in range(micro_batches - warm_up):
        order += [("forward", 0, warm_up + number), ("backward", 0, number)]
    return order + [("backward", 0, number) for number in range(micro_batches - warm_up, micro_batches)]


def play(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    duration: Duration,
    *,
    replicas: int = 1,
    steps: int = 1,
    with_transfers: bool = False,
) -> list[dict[str, object]]:
    """Rows of a timeline; transfers take no time.

    Args:
        orders: The computations of each stage.
        duration: Milliseconds of a computation: replica, step, kind, chunk of the model, micro-batch.
        replicas: Number of replicas, which do not wait for each other.
        steps: Number of steps.
        with_transfers: Record sends and receives, too.
    """
    rows: list[dict[str, object]] = []
    for replica in range(replicas):
        for step in range(steps):
            rows += _play_step(orders, duration, replica, step, with_transfers)
    return rows


def _play_step(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    duration: Duration,
    replica: int,
    step: int,
    with_transfers: bool,
) -> list[dict[str, object]]:
    stages, chunks = len(orders), 1 + max(chunk for order in orders for _, chunk, _ in order)
    before = {
        (stage, each): (order[at - 1] if at else None)
        for stage, order in enumerate(orders)
        for at, each in enumerate(order)
    }

    def find_source(stage: int, kind: str, chunk: int, number: int) -> tuple[int, str, int, int] | None:
        place = chunk * stages + stage + (-1 if kind == "forward" else 1)
        return (place % stages, kind, place // stages, number) if 0 <= place < stages * chunks else None

    @cache
    def find_end(stage: int, kind: str, chunk: int, number: int) -> float:
        own = before[stage, (kind, chunk, number)]
        source = find_source(stage, kind, chunk, number)
        start = max(find_end(stage, *own) if own else 0.0, find_end(*source) if source else 0.0)
        return start + duration(replica, step, kind, chunk * stages + stage, number)

    rows: list[dict[str, object]] = []
    counts: dict[tuple[int, str], int] = {}

    def add(stage: int, operation: str, start_ms: float, end_ms: float, *chunks_and_batch: int) -> None:
        sequence = counts[stage, operation] = counts.get((stage, operation), -1) + 1
        chunk, model_chunk, number = chunks_and_batch or (-1, -1, -1)
        rows.append(
            {
                "dp_rank": replica,
                "stage": stage,
                "rank": replica * stages + stage,
                "step": step,
                "operation": operation,
                "start_ns": round(1e6 * start_ms),
                "duration_ns": round(1e6 * (end_ms - start_ms)),
                "sequence": sequence,
                "chunk": chunk,
                "model_chunk": model_chunk,
                "micro_batch": number,
            }
        )

    for stage, order in enumerate(orders):
        for kind, chunk, number in order:
            own, end = before[stage, (kind, chunk, number)], find_end(stage, kind, chunk, number)
            place = chunk * stages + stage
            start = end - duration(replica, step, kind, place, number)
            if with_transfers and find_source(stage, kind, chunk, number):
                add(stage, f"{kind}-recv", find_end(stage, *own) if own else 0.0, start)
            add(stage, f"{kind}-compute", start, end, chunk, place, number)
            if with_transfers and 0 <= place + (1 if kind == "forward" else -1) < stages * chunks:
                add(stage, f"{kind}-send", end, end)
    return rows


def make_columns(rows: Sequence[dict[str, object]]) -> Columns:
    """Return the table ``operations`` of a run."""
    return Columns(
        {
            name: Texts.of(str(row[name]) for row in rows)
            if name == "operation"
            else make_column([row[name] for row in rows])
            for name in _NAMES
        }
    )


def make_file_table(rows: Sequence[dict[str, object]]) -> pa.Table:
    """Return the table as its file has it, in seconds."""
    columns = {_NAMES[name]: [row[name] for row in rows] for name in _NAMES}
    for name in ("start_ts", "duration"):
        columns[name] = [1e-9 * int(str(value)) for value in columns[name]]
    return pa.table(columns)


def write_timeline(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """Write the Parquet file."""
    pq.write_table(make_file_table(rows), path)
    return path
