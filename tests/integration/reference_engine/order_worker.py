"""One rank of programs whose ranks call their units in different orders.

A disagreement ends every collective of the process, so that such a case needs a process group of its own.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm

WIDTH = 8


class Experts(nn.Module):
    """Experts of the given widths between two layers that all ranks call."""

    def __init__(self, hidden: Sequence[int]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH)) for width in hidden
        )

    def forward(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        x = self.first(x)
        for index in order:
            x = x + self.experts[index](x)
        return x.square().mean()


def run(case: dict[str, Any]) -> dict[str, Any]:
    """From ``deviates_in`` on rank ``deviating`` calls its experts backwards."""
    rank = dist.get_rank()
    hidden = case["hidden"]
    comm: Comm = ModelledComm(LinkModel(**case["link"])) if case.get("link") else NativeComm()
    config = ZeroConfig(stage=3, micro_batches=case.get("micro_batches", 1), clip_norm=case.get("clip"))
    model, optimizer = zero(Experts(hidden), config, comm)
    counted = []
    for step in range(case["steps"]):
        order = list(range(len(hidden)))
        if case.get("drop"):  # all ranks leave out the same
            order = sorted(random.Random(step).sample(order, 2))
        if rank == case.get("deviating") and step >= case["deviates_in"]:
            order.reverse()
        try:
            optimizer.zero_grad()
            for _ in range(config.micro_batches):
                x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
                model(x, order).backward()
            optimizer.step()
        except RuntimeError as error:
            try:
                model(torch.randn(2, WIDTH), order)
            except RuntimeError as again:
                return {"step": step, "error": str(error), "again": str(again)}
            return {"step": step, "error": str(error), "again": ""}
        watched = comm.order  # type: ignore[union-attr]
        counted.append([watched.comparisons, watched.announcements])
    return {"counted": counted, "weights": float(sum(p.double().sum() for p in model.state_dict().values()))}
