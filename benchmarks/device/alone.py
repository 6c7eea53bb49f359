"""The engine with one rank in this process, for whoever watches the device meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig

BATCH, CONTEXT, VOCABULARY = 8, 128, 512


@contextmanager
def stepping(backend: str, config: ZeroConfig, device: str = "cuda") -> Iterator[Callable[[], float]]:
    """A function that makes one step on the device and returns its loss."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        module = GPT(GPTConfig(layers=4, hidden=256, vocabulary=VOCABULARY, context=CONTEXT)).to(device)
        model, optimizer = zero(module, config)
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)

        def step() -> float:
            optimizer.zero_grad()
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        yield step
        model.synchronize()
    finally:
        dist.destroy_process_group()
