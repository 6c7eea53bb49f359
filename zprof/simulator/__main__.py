"""Write a simulated job: `python -m zprof.simulator --seed 7 --fault straggler_rank OUT`."""

from __future__ import annotations

import argparse

from zprof.simulator.ground_truth import Truth, draw_job, write_job
from zprof.simulator.job import CAUSES, SHAPES
from zprof.simulator.mesh.draw import draw_mesh_job
from zprof.simulator.mesh.faults import MESH_CAUSES
from zprof.simulator.mesh.truth import write_mesh_job


def main() -> None:
    """Parse the command line and write the job."""
    parser = argparse.ArgumentParser(prog="python -m zprof.simulator")
    parser.add_argument("folder", help="where the traces and truth.json go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", help='a cause to plant, or two joined by "+": ' + ", ".join(CAUSES))
    parser.add_argument("--mesh", action="store_true", help="several dimensions: " + ", ".join(MESH_CAUSES))
    parser.add_argument("--shape", choices=SHAPES, default="training")
    parser.add_argument("--all-gains", action="store_true", help="write the gain of every cause")
    options = parser.parse_args()
    if options.mesh:
        job = draw_mesh_job(options.seed, options.fault)
        truth: Truth = write_mesh_job(job, options.folder, MESH_CAUSES if options.all_gains else ())
    else:
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
