"""Every check of the project that needs a GPU, in one command of at most 8 minutes on one GPU.

python -m benchmarks.gpu [--output FILE] [--only CHECK ...]

Each check is a row: ok, failed or not measured, with a one-line reason; the file is written after each.
Without a GPU every row says so.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.conditions import conditions, today
from benchmarks.device.checks import CHECKS, Check, Row, Status
from benchmarks.device.isolate import isolated

SCHEMA = "zprof.benchmark.gpu/1"
RESULTS = Path(__file__).with_name("results")
BUDGET_S = 470.0
"""For all checks together: 8 minutes, less the time to start and to write."""
NO_DEVICE = "no CUDA device"


def no_device() -> str | None:
    """Return why nothing can be measured here, or None if there is a GPU."""
    import torch

    return None if torch.cuda.is_available() else NO_DEVICE


def rows_of(
    checks: Sequence[Check],
    folder: Path,
    *,
    reason: str | None,
    budget_s: float = BUDGET_S,
    seen: Callable[[list[Row]], None],
) -> list[Row]:
    """Run the checks one after the other; ``seen`` is called with all rows after each.

    ``reason`` says why none can run; a check without time left is skipped too.
    """
    end = time.monotonic() + budget_s
    rows: list[Row] = []
    for check in checks:
        left = end - time.monotonic()
        why = reason if reason is not None else (None if left > 5 else "no time left in the budget")
        if why is None:
            rows.append(isolated(check.name, folder, min(check.limit_s, left)))
        else:
            rows.append(Row(check=check.name, status=Status.NOT_MEASURED, reason=why))
        seen(rows)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; exit code 0 if none failed."""
    options = _parser().parse_args(arguments)
    checks = [check for check in CHECKS if options.only is None or check.name in options.only]
    device = no_device()
    path = options.output or RESULTS / f"gpu-{today()}.json"
    kept: dict[str, Any] = {"schema": SCHEMA, "conditions": conditions(), "rows": []}

    def seen(rows: list[Row]) -> None:
        print(rows[-1].line(), flush=True)
        kept["rows"] = [row.as_dict() for row in rows]
        _write(path, kept)

    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(checks, Path(folder), reason=device, seen=seen)
    print(f"written to {path}", file=sys.stderr)
    return 1 if any(row.status is Status.FAILED for row in rows) else 0


def _write(path: Path, value: dict[str, Any]) -> None:
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(unfinished, path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="where to write the figures")
    parser.add_argument("--only", nargs="+", choices=[check.name for check in CHECKS], help="these checks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
