"""Read the times of the stages of a pipeline, one JSON file per stage: Primus with ``dump_pp_data``.

A file ``pp_rank_N.json`` has one entry per iteration, with the starts and ends of the forward and backward
passes of stage N in milliseconds, by micro-batch. The stages of an iteration share one clock. There is one
replica, and neither communication nor virtual stages.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct

from zprof.base.errors import BadInput
from zprof.run.files import open_plain
from zprof.run.schema import OPERATIONS
from zprof.run.table_reader import make_array

_NAME = re.compile(r"rank[_-]?(\d{1,5})\D*$", re.IGNORECASE)
_HINT = "pass the folder with the files pp_rank_0.json, pp_rank_1.json, … of one job"
_MAX_FILE_BYTES = 64 << 20
_MAX_TIME_MS = 3e9
_MAX_STEP_DIGITS = 9
_Times = Annotated[list[float], Meta(max_length=100_000)]


class _Iteration(Struct, frozen=True):
    fwd_start: _Times
    fwd_end: _Times
    bwd_start: _Times
    bwd_end: _Times


def read_stage_times(paths: Sequence[Path]) -> pa.Table:
    """Return the table ``operations`` of a run.

    Raises:
        BadInput: A file has no stage in its name, has the stage of another file, or is damaged.
    """
    stages: dict[int, Path] = {}
    rows: list[tuple[int, int, str, float, float, int]] = []
    for path in paths:
        match = _NAME.search(path.stem)
        if match is None:
            raise BadInput(f"{path}: its name does not contain its stage", hint=_HINT)
        number = int(match[1])
        if number in stages:
            raise BadInput(f"{path}: is of stage {number}, as {stages[number]}", hint=_HINT)
        stages[number] = path
        rows += _read_file(path, number)
    if not rows:
        raise BadInput(f"{paths[0]}: no forward or backward pass", hint=_HINT)
    stage, step, operation, start_ms, end_ms, micro_batch = zip(*rows, strict=True)
    starts = np.rint(1e6 * np.array(start_ms)).astype(np.int64)
    columns = {
        "dp_rank": np.zeros(len(rows), np.int64),
        "stage": np.array(stage),
        "rank": np.array(stage),
        "step": np.array(step),
        "operation": operation,
        "start_ns": starts,
        "duration_ns": np.rint(1e6 * np.array(end_ms)).astype(np.int64) - starts,
        "sequence": np.array(micro_batch),
        "chunk": np.full(len(rows), -1),
        "model_chunk": np.full(len(rows), -1),
        "micro_batch": np.array(micro_batch),
    }
    arrays = [make_array(columns[field.name], field.type) for field in OPERATIONS]
    return pa.Table.from_arrays(arrays, schema=OPERATIONS)


def _read_file(path: Path, stage: int) -> list[tuple[int, int, str, float, float, int]]:
    """Return stage, step, operation, start and end in ms, and number of each pass."""
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise BadInput(f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB", hint="pass fewer iterations")
        iterations = msgspec.json.decode(content, type=dict[str, _Iteration])
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="pass a readable file") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: no times of a pipeline stage ({str(error)[:100]})", hint=_HINT) from None
    rows = []
    for name, passes in iterations.items():
        if not (name.isascii() and name.isdigit() and len(name) <= _MAX_STEP_DIGITS):
            raise BadInput(f"{path}: an iteration without a number", hint=_HINT)
        for kind, starts, ends in (
            ("forward-compute", passes.fwd_start, passes.fwd_end),
            ("backward-compute", passes.bwd_start, passes.bwd_end),
        ):
            is_valid = len(starts) == len(ends) and all(
                -_MAX_TIME_MS < start <= end < _MAX_TIME_MS for start, end in zip(starts, ends, strict=True)
            )
            if not is_valid or not all(map(math.isfinite, starts)):
                raise BadInput(f"{path}: impossible times in iteration {name}", hint=_HINT)
            pairs = enumerate(zip(starts, ends, strict=True))
            rows += [(stage, int(name), kind, start, end, number) for number, (start, end) in pairs]
    return rows
