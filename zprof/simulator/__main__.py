"""Write a simulated job: `python -m zprof.simulator --seed 7 --fault straggler_rank OUT`."""

from __future__ import annotations

import argparse

from zprof.simulator.ground_truth import draw_job, write_job
from zprof.simulator.job import CAUSES, SHAPES


def main() -> None:
    """Parse the command line and write the job."""
    parser = argparse.ArgumentParser(prog="python -m zprof.simulator")
    parser.add_argument("folder", help="where the traces and truth.json go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", help='a cause to plant, or two joined by "+": ' + ", ".join(CAUSES))
    parser.add_argument("--shape", choices=SHAPES, default="training")
    parser.add_argument("--all-gains", action="store_true", help="write the gain of every cause")
    options = parser.parse_args()
    job = draw_job(options.seed, options.fault, options.shape)
    truth = write_job(job, options.folder, CAUSES if options.all_gains else ())
    print(f"{len(truth.ranks)} ranks, {truth.steps} steps of {truth.step_time_ns / 1e6:.2f} ms")
    for cause, saving in truth.saving_ns.items():
        if cause == "measurement_artifact":
            saving = truth.window_saving_ns[cause]  # as in gain_ns: a steady step does not contain it
        shown = "cannot occur" if saving is None else f"{saving / 1e6:+.3f} ms/step"
        print(f"{cause}: {shown}{' (planted)' if cause in truth.planted else ''}")


if __name__ == "__main__":
    main()
