"""Generated CUDA memory snapshots with known owners, read by the product and compared block by block.

    python -m benchmarks.snapshot_truth [--count N] [--first-seed N] [--jobs N] [--variant NAME] [--out FILE]
    python -m benchmarks.snapshot_truth --show SEED
    python -m benchmarks.snapshot_truth --recorded RUN...

Prints tables by variant and writes ``benchmarks/results/snapshot_truth-DATE.json``. Exits with 1 if a byte
is named wrongly with the level "sure", or if a peak differs from the truth.
"""

import argparse
import json
import multiprocessing
import sys
from pathlib import Path

from benchmarks.conditions import conditions, today
from benchmarks.snapshot_truth.compare import compare_seed, compare_snapshot, to_json
from benchmarks.snapshot_truth.phase_summary import format_phases, summarize_phases
from benchmarks.snapshot_truth.recorded import export_run
from benchmarks.snapshot_truth.summary import format_groups, format_summary, has_failed, summarize
from benchmarks.snapshot_truth.variants import VARIANTS

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="generate only this one")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the groups of one snapshot")
    parser.add_argument(
        "--recorded", type=Path, nargs="+", metavar="RUN", help="export recorded runs instead"
    )
    options = parser.parse_args()
    if options.show is not None:
        print(format_groups(compare_seed((options.show, options.variant))))
        return 0
    if options.recorded:
        exported = [compare_snapshot(*export_run(path)) for path in options.recorded]
        print(format_summary(summarize(exported), exported))
        print(f"\n{format_phases(summarize_phases(exported))}\n")
        print("\n\n".join(format_groups(each) for each in exported))
        return 1 if has_failed(exported) else 0
    tasks = [(options.first_seed + n, options.variant) for n in range(options.count)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        comparisons = list(pool.imap(compare_seed, tasks, chunksize=4))
    summary = summarize(comparisons)
    phases = summarize_phases(comparisons)
    print(f"{format_summary(summary, comparisons)}\n\n{format_phases(phases)}")
    out = options.out or RESULTS / f"snapshot_truth-{today()}.json"
    result = {
        "conditions": conditions(),
        "benchmark": "snapshot_truth",
        "count": options.count,
        "first_seed": options.first_seed,
        "by_variant": summary,
        "phases": phases,
        "snapshots": [to_json(each) for each in comparisons],
    }
    out.write_text(json.dumps(result, indent=1, default=str) + "\n")
    return 1 if has_failed(comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
