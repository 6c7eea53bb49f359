"""``zprof plan``: predict the memory and step time of a job before it runs."""

import argparse
from typing import TYPE_CHECKING

from msgspec.structs import replace

from zprof.cli import console
from zprof.cli.output import add_output_options, render_to
from zprof.cli.plan_options import add_planning_options, build_job, choose_schemes

if TYPE_CHECKING:
    from zprof.model.plan import Plan


#: Instead of the name of a preset: show all.
_LIST = "list"


class PlanCommand:
    """Predict whether a job fits in memory, and what its communication costs.

    Compares the memory per device under ZeRO stages 0 to 3, Megatron, GPipe and
    PipeDream, by tenant: what the ZeRO paper counts and what it omits (gathered units,
    copies, buffers, activations). Also shows what fits, the largest model that fits, the
    bytes on each link and a breakdown of the step time. Usual values stand for shape,
    batch and hardware that are not given; figures that rest on them start with ~. Needs
    no run, no GPU and no torch.

    examples:
      zprof plan --params 13e9 --dp 64
      zprof plan --preset llama-3-8b --dp 8 --hardware h100 --sequence 8192
      zprof plan --preset 1t --dp 1024 --sensitivity
      zprof plan --preset 7.5b --dp 64 --hardware h100 --micro-batch 4 --sequence 1024
      zprof plan --layers 36 --hidden 4096 --dp 64 --hardware v100 --device-memory 16GB
      zprof plan --preset 60b --dp 25 --mp 16 --hardware v100 -o plan.html
      zprof plan --model mymodel:build --dp 8 --micro-batch 2 --sequence 2048 --verify
    """

    name = "plan"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the job, the analysis and the output options."""
        add_planning_options(parser)
        group = parser.add_argument_group("analysis")
        group.add_argument(
            "--sensitivity",
            action="store_true",
            help="effect of other bandwidths, latencies, batches and world sizes; break-even points",
        )
        group.add_argument(
            "--verify",
            action="store_true",
            help="run one rank on fake tensors and compare its memory with the plan (needs torch)",
        )
        group.add_argument(
            "--assumptions",
            action="store_true",
            help="text output: show each assumption in full, with its values",
        )
        add_output_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Plan the job and write the result."""
        from zprof.reports.formats import PLANS, PLANS_IN_FULL

        if arguments.preset == _LIST:
            console.print_data(_list_presets())
            return 0
        formats = PLANS_IN_FULL if arguments.assumptions else PLANS
        render_to(arguments, formats, lambda: _make_plan(arguments))
        return 0


def _make_plan(arguments: argparse.Namespace) -> "Plan":
    from zprof.planner.plan import plan

    job = build_job(arguments)
    prediction = plan(job, schemes=choose_schemes(arguments), with_sensitivity=arguments.sensitivity)
    if not arguments.verify:
        return prediction
    from zprof.integrations.planning.tasks import verify_plan

    return replace(prediction, verification=verify_plan(prediction, arguments.model))


def _list_presets() -> str:
    from zprof.planner.model_presets import MODEL_PRESETS

    width = max(len(name) for name in MODEL_PRESETS)
    lines = (
        f"{name:<{width}}  {preset.parameters:>17,}  {preset.shape.layers:>3} x {preset.shape.hidden:>6,}"
        for name, preset in MODEL_PRESETS.items()
    )
    return "\n".join((f"{'name':<{width}}  {'parameters':>17}  layers x hidden", *lines, ""))
