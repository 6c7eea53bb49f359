"""The task ``verify``: runs one rank of the job at each stage, and tells what was live at the peak."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from zprof.integrations.planning.answering import Tell
from zprof.integrations.planning.fake.engine import Rank, fake_world, gpt_rank, user_rank, without_memory
from zprof.integrations.planning.fake.outputs import output_of
from zprof.integrations.planning.fake.settings import Settings, gpt_of, settings_of
from zprof.integrations.planning.fake.steps import Loss, counted_step
from zprof.integrations.planning.fake.user_model import builder, first_line
from zprof.model.errors import ZprofError
from zprof.model.planning.job import Job
from zprof.reference_engine.comm.mesh import Mesh

Build = Callable[[Settings, Mesh], Rank]


def verify(task: dict[str, Any], tell: Tell) -> None:
    """One answer for each stage, as soon as it is known; a stage that fails says why."""
    job = msgspec.convert(task["job"], Job)
    build, vocabulary = _program(job, task["model"])
    for stage in task["stages"]:
        print(f"zprof: verifying stage {stage} on tensors without memory", file=sys.stderr, flush=True)
        try:
            tell(_stage(job, stage, build, vocabulary))
        except ZprofError:
            raise
        except Exception as error:
            tell({"stage": stage, "error": first_line(error)})


def _program(job: Job, model: str | None) -> tuple[Build, int | None]:
    """What makes the rank, and how many words a token can be (None: the user's model, which does not say)."""
    if model is None:
        config = gpt_of(job)
        return (lambda settings, mesh: gpt_rank(config, settings, mesh)), config.vocabulary
    build = builder(model)
    return (lambda settings, mesh: user_rank(build(), settings, mesh)), None


def _stage(job: Job, stage: int, build: Build, vocabulary: int | None) -> dict[str, Any]:
    settings = settings_of(job, stage)
    loss = _user_loss(settings) if vocabulary is None else _gpt_loss(settings, vocabulary)
    with fake_world(dp=job.degrees.dp, mp=job.degrees.mp) as mesh, without_memory(job.element_bytes):
        peak, tenants = counted_step(
            lambda: build(settings, mesh), loss, micro_batches=settings.zero.micro_batches
        )
    return {"stage": stage, "peak_bytes": peak.bytes, "place": peak.place, "tenants": dict(tenants)}


def _gpt_loss(settings: Settings, vocabulary: int) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.randint(vocabulary, (settings.samples, settings.sequence + 1))
        made: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
        return made

    return loss


def _user_loss(settings: Settings) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.zeros((settings.samples, settings.sequence), dtype=torch.int64)
        return output_of(model(tokens)).sum()

    return loss
