"""Run directories with hand-made memory tables: a window of 1000 ns from ``T0`` on, step 2."""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import load
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter

T0 = 1_700_000_000_000_000_000
MARKS = [
    (T0, "window_begin", 2, "memory"),
    (T0, "step_begin", 2, ""),
    (T0 + 500, "phase", 0, "optimizer"),
    (T0 + 1000, "step_end", 2, ""),
    (T0 + 1000, "window_end", 3, "memory"),
]
FACTS = TrainingFacts(
    engine="zero",
    stage=1,
    parameters=100,
    shard_ranks=2,
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_state_bytes=8,
)
Rows = list[dict[str, Any]]
Tables = dict[str, Rows]


def alloc(
    generation: int, size: int, source: str = "storage", freed: int | None = None, **changed: Any
) -> dict[str, Any]:
    row = dict.fromkeys(TABLES["alloc"].names)
    row |= {"generation": generation, "source": source, "device": "cpu", "address": 64 * (generation + 2)}
    row |= {"bytes": size, "allocated_ns": T0 - 5, "freed_ns": freed, "before_window": True, "phase": "other"}
    return row | changed


def role(generation: int, tenant: str, **changed: Any) -> dict[str, Any]:
    row = {"generation": generation, "time_ns": T0, "tenant": tenant, "sub": "s", "gained": True}
    return row | {"backdated": True, "via": "test"} | changed


def sample(time_ns: int, device: str = "cuda:0", **counters: Any) -> dict[str, Any]:
    row = dict.fromkeys(TABLES["samples"].names)
    return row | {"time_ns": T0 + time_ns, "step": 2, "device": device} | counters


def marks(extra: list[tuple[Any, ...]] | None = None) -> Rows:
    unknown = dict.fromkeys(TABLES["mark"].names)
    names = ("time_ns", "kind", "number", "name")
    return [unknown | dict(zip(names, mark, strict=True)) for mark in [*(extra or []), *MARKS]]


def full() -> Tables:
    """Parameters, gradients and optimizer state of 400 bytes each, and 7 bytes of nobody."""
    states = [alloc(0, 400), alloc(1, 400), alloc(2, 400), alloc(3, 7)]
    roles = [role(0, "parameters"), role(1, "gradients"), role(2, "optimizer_state")]
    return {"alloc": states, "role": roles, "mark": marks()}


def write(folder: Path, ranks: list[Tables], mode: str = "full", facts: TrainingFacts = FACTS) -> Path:
    manifest = RunManifest(
        zprof_version="0", created_ns=time.time_ns(), world_size=len(ranks), backend="gloo", device="cpu",
        training=facts,
    )  # fmt: skip
    for rank, tables in enumerate(ranks):
        writer = RankWriter(folder, rank, manifest)
        for name, rows in tables.items():
            writer.write_table(name, columns(name, rows))
        writer.finish(memory_steps=[2], time_steps=[], gaps=[], status="complete")
    if mode != "full":
        for path in folder.glob("rank*/rank.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"memory_mode": mode}))
    return folder


def columns(name: str, rows: Rows) -> Mapping[str, list[Any]]:
    return {column: [row[column] for row in rows] for column in TABLES[name].names}


def analyse(
    folder: Path, tables: Tables, ranks: int = 1, mode: str = "full", facts: TrainingFacts = FACTS
) -> MemoryAnalysis:
    return analyse_memory(load(write(folder, [tables] * ranks, mode, facts)))


def put_table(folder: Path, name: str, rows: Rows, rank: int = 0) -> None:
    """Put a table into a run as a hostile writer would: nulls wherever it likes, the checksum right."""
    schema = pa.schema([field.with_nullable(True) for field in TABLES[name]])
    path = folder / f"rank{rank:05d}/{name}.parquet"
    pq.write_table(pa.table(dict(columns(name, rows)), schema=schema), path)
    manifest = path.with_name("rank.json")
    tree = json.loads(manifest.read_text())
    tree["files"][name] = {"rows": len(rows), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    manifest.write_text(json.dumps(tree))
