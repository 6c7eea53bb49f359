"""Reduce each gradient as soon as it is ready, and read the loss back before waiting for the reductions."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS, BATCH, HIDDEN, LAYERS = 14, 16, 1024, 6


def main() -> None:
    """Train on random vectors."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pending: list[dist.Work] = []

    def reduce(parameter: Tensor) -> None:
        assert parameter.grad is not None
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        pending.append(work)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)
    for _ in range(STEPS):
        batch = torch.randn(BATCH, HIDDEN)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        history.append(loss.item())
        while pending:
            pending.pop().wait()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


history: list[float] = []

if __name__ == "__main__":
    main()
