"""``zprof plan``: predict the cost of a job that did not run."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from zprof.cli.output import add_output_options, render_to
from zprof.cli.plan_options import add_planning_options, build_job, choose_schemes

if TYPE_CHECKING:
    from zprof.model.plan import Plan


class PlanCommand:
    """Say before a run whether it fits, and what its network costs.

    Memory of a device by tenant under ZeRO stages 0 to 3, Megatron, GPipe and PipeDream
    side by side: what the paper counts, and what it leaves out (gathered units, copies,
    buffers, activations). With hardware: what fits, the largest model that does, bytes
    on each link and the ledger of a step. No run, no GPU and no torch are needed.

    examples:
      zprof plan --params 7.5e9 --dp 64
      zprof plan --preset 1t --dp 1024 --sensitivity
      zprof plan --preset 7.5b --dp 64 --hardware h100 --micro-batch 4 --sequence 1024
      zprof plan --layers 36 --hidden 4096 --dp 64 --hardware v100 --device-memory 16GB
      zprof plan --preset 60b --dp 25 --mp 16 --hardware v100 -o plan.html
      zprof plan --model mymodel:build --dp 8 --micro-batch 2 --sequence 2048 --verify
    """

    name = "plan"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the job, further questions and the output options."""
        add_planning_options(parser)
        group = parser.add_argument_group("what else to say")
        group.add_argument(
            "--sensitivity",
            action="store_true",
            help="what other bandwidths, latencies, batches and world sizes would do; the break-even",
        )
        group.add_argument(
            "--verify",
            action="store_true",
            help="run one rank on tensors without memory, and hold the plan against it (needs torch)",
        )
        group.add_argument(
            "--assumptions", action="store_true", help="in text: each assumption in full, and its figures"
        )
        add_output_options(parser, "text, json, md or html")

    def run(self, arguments: argparse.Namespace) -> int:
        """Plan the job and write the result."""
        from zprof.reports.formats import PLANS, PLANS_IN_FULL

        formats = PLANS_IN_FULL if arguments.assumptions else PLANS
        render_to(arguments, formats, lambda: _make_plan(arguments))
        return 0


def _make_plan(arguments: argparse.Namespace) -> "Plan":
    from zprof.planner.plan import plan

    job = build_job(arguments)
    made = plan(job, schemes=choose_schemes(arguments), with_sensitivity=arguments.sensitivity)
    if not arguments.verify:
        return made
    from zprof.integrations.planning.tasks import verify_plan

    return replace(made, verification=verify_plan(made, arguments.model))
