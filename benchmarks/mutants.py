"""Does a test turn red when a rule is changed?  Every comparison and every constant of them, one at a time.

    python -m benchmarks.mutants [zprof/causes/... ...] [--list]

Flips each comparison of the rules to its neighbour (``<`` to ``<=``) and to its negation, scales the number
of each module constant, and runs the unit tests that read that line, on a copy of the checkout.  A change
that leaves them green is a survivor: a threshold that no test checks.  ``EQUIVALENT`` lists mutants that no
test can kill, each with the reason.  A run of everything, without paths, writes
``benchmarks/results/mutants-DATE.json``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.conditions import ROOT, conditions, today
from benchmarks.mutations import find_mutants

RESULTS = Path(__file__).parent / "results"
_CAUSES = "zprof/causes"


def main() -> None:
    """Try the mutants, print the table and write the result."""
    arguments = _arguments()
    files = sorted({file for path in arguments.paths or [_CAUSES] for file in _list_files(path)})
    if arguments.list:
        for mutant in (mutant for file in files for mutant in find_mutants(file, (ROOT / file).read_bytes())):
            print(f"{mutant.path}:{mutant.line}: {mutant.change}")
        return
    tried = list(_try_mutants(files, arguments.seconds, arguments.leave_out))
    rows = [_row(file, [mutant for mutant in tried if mutant["path"] == file]) for file in files]
    print(format_table([row for row in rows if row["mutants"]]))
    if not arguments.paths:
        result = {"conditions": conditions(), "benchmark": "mutants", "modules": rows}
        (RESULTS / f"mutants-{today()}.json").write_text(json.dumps(result, indent=1) + "\n")


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a row per module, their sum, and below it each survivor."""
    lines = [f"{'module':<60} {'mutants':>8} {'killed':>8} {'same':>8} {'alive':>8}"]
    for row in [*rows, _sum(rows)]:
        counts = (row["mutants"], row["killed"], len(row["equivalent"]), len(row["survivors"]))
        lines.append(f"{row['module']:<60} " + " ".join(f"{count:>8}" for count in counts))
    return "\n".join([*lines, *(survivor for row in rows for survivor in row["survivors"])])


def _sum(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"module": "all", "mutants": 0, "killed": 0, "equivalent": [], "survivors": []}
    for row in rows:
        total |= {name: total[name] + row[name] for name in total if name != "module"}
    return total


def _row(file: str, tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
    alive = [mutant for mutant in tried if not mutant["ended"].startswith("killed")]
    same = [mutant for mutant in alive if _key(mutant) in EQUIVALENT]
    return {
        "module": file,
        "mutants": len(tried),
        "killed": len(tried) - len(alive),
        "equivalent": [f"{mutant['change']}: {EQUIVALENT[_key(mutant)]}" for mutant in same],
        "survivors": [
            f"{file}:{mutant['line']}: {mutant['change']}  ({mutant['ended']})"
            for mutant in alive
            if mutant not in same
        ],
    }


def _key(mutant: dict[str, Any]) -> str:
    return f"{mutant['path']}: {mutant['change']}"


def _try_mutants(files: Sequence[str], limit_s: float, left_out: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each mutant with its outcome as it comes; the copy is removed afterwards."""
    with TemporaryDirectory(prefix="zprof-mutants-") as folder:
        _copy(Path(folder))
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": folder, "TMPDIR": folder}
        command = [sys.executable, "-m", "benchmarks.mutation_server", str(limit_s), *left_out, "--", *files]
        with subprocess.Popen(
            command, cwd=folder, env=os.environ | threads | plain, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            row = json.loads(server.stdout.readline())
            print(f"{row['tests']} tests, {row['seconds']:.0f} s", file=sys.stderr)
            for test in row["red"]:
                print(f"red without any mutant, left out: {test}", file=sys.stderr)
            for line in server.stdout:
                mutant = json.loads(line)
                if not mutant["ended"].startswith("killed"):
                    print(f"{mutant['ended']}: {_key(mutant)}", file=sys.stderr)
                yield mutant
        if server.returncode:
            raise SystemExit(f"the tests' process ended with {server.returncode}")


def _copy(folder: Path) -> None:
    """Copy the checkout as it is now, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def _list_files(path: str) -> list[str]:
    target = (ROOT / path).resolve()
    found = [target] if target.is_file() else sorted(target.rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in found]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files of zprof/causes; else all of them")
    parser.add_argument("--list", action="store_true", help="say what would be changed, and try nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="leave tests out that take longer")
    parser.add_argument("--leave-out", nargs="*", default=[], help="patterns of test files, as */*planted*")
    return parser.parse_args()


_NEVER_EQUAL = "no float near 1, less 1, is this to the last bit"

#: The key of the mutant (file: change), and why it is the same program.
EQUIVALENT: dict[str, str] = {
    f"{_CAUSES}/lost_compute_efficiency.py: "
    "abs(comparison.work.b / comparison.work.a - 1) > 0.01  ->  >=": _NEVER_EQUAL,
}


if __name__ == "__main__":
    main()
