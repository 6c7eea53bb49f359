"""Jobs that a plan refuses: the machine they are on, and what a refusal must be."""

from dataclasses import replace

import pytest

from zprof.model.errors import BadInput
from zprof.model.job import Job
from zprof.planner import hardware
from zprof.planner.refusals import refuse_impossible

V100 = replace(hardware.V100, name="V100 DGX-2")


def refused_in_one_line(job: Job, what: str, remedy: str) -> None:
    """It is refused; the line holds ``what``, the hint ``remedy``."""
    with pytest.raises(BadInput) as refused:
        refuse_impossible(job)
    assert what in refused.value.message
    assert remedy in refused.value.hint
    assert "\n" not in refused.value.message + refused.value.hint
    assert len(refused.value.message) < 200
