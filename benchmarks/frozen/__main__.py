"""Run zprof on all inputs, and name each leaf and line that differs from the committed copy.

    python -m benchmarks.frozen                    exits with 1 if anything differs
    python -m benchmarks.frozen --update           writes the copy, too: after a change that is meant
    python -m benchmarks.frozen --only NAME ...    the cases whose names start so; --list prints the names
    python -m benchmarks.frozen --without-shared   what needs no ../shared/data: two minutes on 2 cores

A commit that changes the copy lists what changed, with the reason.
"""

import argparse
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.frozen.cases import SHARED_PREFIX, list_own_cases, list_shared_cases
from benchmarks.frozen.changes import format_changes, list_changes
from benchmarks.frozen.copies import COPIES, make_digest, read_copy, read_digests, update_copies
from benchmarks.frozen.inputs import SHARED
from benchmarks.frozen.run_case import Case, Documents, run_case

_MAX_CASES = 40


def main() -> int:
    arguments = _parse_arguments()
    shared = [] if arguments.without_shared else list_shared_cases()
    cases = [*list_own_cases(), *shared]
    known = {case.name for case in cases}
    if arguments.only:
        cases = [case for case in cases if case.name.startswith(tuple(arguments.only))]
    if arguments.list or not cases:
        print("\n".join(case.name for case in cases) or "no such case; --list prints the names")
        return 0 if cases else 2
    started = time.monotonic()
    found = run_cases(cases, arguments.processes)
    digests = [make_digest(documents) for documents in found.values()]
    print(
        f"{len(found)} cases, {sum(each.leaves for each in digests):,} leaves, "
        f"{sum(each.lines for each in digests):,} lines in {time.monotonic() - started:.0f} s"
    )
    if not shared:
        print(
            f"left out: the cases of {SHARED}" + ("" if arguments.without_shared else ", which is not there")
        )
        known |= {name for name in read_digests() if name.startswith(SHARED_PREFIX)}
    lines = compare(found, known, arguments.most)
    print("\n".join(lines) or "nothing changed")
    if arguments.update:
        written, removed = update_copies(found, known)
        print(f"wrote {len(written)} copies, removed {len(removed)}")
        return 0
    return 1 if lines else 0


def run_cases(cases: Sequence[Case], processes: int) -> dict[str, Documents]:
    """Return what each case wrote and printed, by its name."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return dict(zip((case.name for case in cases), pool.map(run_case, cases), strict=True))


def compare(
    found: dict[str, Documents], known: Collection[str], max_changes: int, folder: Path = COPIES
) -> list[str]:
    """Return lines that name what differs from the copy; none if nothing does."""
    digests = read_digests(folder)
    differing = [name for name, documents in found.items() if make_digest(documents) != digests.get(name)]
    lines: list[str] = []
    changed = 0
    for name in differing:
        if name not in digests:
            lines.append(f"{name}: has no copy; --update writes it")
            continue
        changes = list_changes(read_copy(name, folder), found[name])
        changed += bool(changes)
        if changes and changed <= _MAX_CASES:
            lines += [f"{name}: {len(changes)} changed", *format_changes(changes, max_changes)]
    if changed > _MAX_CASES:
        lines.append(f"and {changed - _MAX_CASES} more cases")
    gone = sorted(set(digests) - set(known))
    return [*lines, *(f"{name}: is in the copy, and no case any more; --update removes it" for name in gone)]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.frozen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--update", action="store_true", help="compare, and write the copy")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names start so")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--without-shared", action="store_true", help="leave out what needs ../shared/data")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=12, help="changes named of each document (default: 12)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
