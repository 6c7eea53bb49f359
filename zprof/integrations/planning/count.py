"""A user's model, counted: ``zprof plan --model module:function``.

The function is the user's own code; it runs in a child process, in the current folder, on the meta device.
"""

from dataclasses import replace

import msgspec

from zprof.integrations.planning.child_process import Limits, ask
from zprof.model.errors import BadInput
from zprof.model.planning.job import Job, Unit


def count_model(spec: str, job: Job, limits: Limits | None = None) -> Job:
    """The job with the parameters and units of the model that ``module:function`` builds, and its name.

    Element counts are exact.  Bytes and flop of the units are known where the batch is, and the model takes
    tokens.  Frozen parameters are counted in ``parameters``, and apart in ``frozen_parameters``.

    Raises:
        BadInput: the user's code fails, or is no such function; one line says how.
    """
    if job.degrees.mp > 1:
        raise BadInput(
            f"--model counts a whole model; how {job.degrees.mp} model-parallel ranks share it is not known",
            hint="leave --mp out, or plan with --layers, --hidden and --vocabulary",
        )
    task = {"what": "count", "model": spec, "job": msgspec.to_builtins(job)}
    answers = ask(task, limits or Limits())
    counted = next((line for line in answers.lines if "parameters" in line), None)
    if counted is None:
        why = answers.ended or "it ended the process"
        raise BadInput(
            f"--model {spec}: the function gave no model: {why}",
            hint="run it by itself: python -c 'import torch; ...'",
        )
    return replace(
        job,
        name=job.name or spec,
        parameters=counted["parameters"],
        frozen_parameters=counted["frozen"],
        units=msgspec.convert(counted["units"], tuple[Unit, ...]),
        shape=None,
    )
