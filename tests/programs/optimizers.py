"""Train blocks with DistributedDataParallel and more than one optimizer, in each form that is in use.

finder: a learning-rate finder steps an optimizer of its own, deletes it, and the real one begins.
copied-finder: the same on a copy of the model.
layers: an optimizer per tensor, 52 of them, stepped one after the other.
hooks: the same, each stepped in the backward pass, once its gradient is summed: the backward waits for that.
gan: the discriminator steps three times for each step of the generator.
scaler: two optimizers and a gradient scaler, which skips one of them in every fourth step.
unfreeze: a second optimizer, for blocks that are frozen at the start.
"""

import argparse
import copy
import itertools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from parts import HIDDEN, SHAPE, STEPS, make_blocks
from step_truth import start_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FINDER_STEPS, LAYERS, GENERATOR_EVERY, OVERFLOW_EVERY, UNFROZEN_AT = 6, 26, 3, 4, 8


def main() -> None:
    """Train on random tokens, each rank on its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=FORMS, required=True)
    form = parser.parse_args().form
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    for update in FORMS[form]():
        start_step()
        update()
    dist.destroy_process_group()


def compute_loss(model: nn.Module) -> torch.Tensor:
    batch = torch.randn(SHAPE)
    return (model(batch) - batch).square().mean()


def update_all(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    compute_loss(model).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def make_model() -> nn.Module:
    return DistributedDataParallel(make_blocks())


def find_rate(is_copied: bool = False) -> Iterator[Callable[[], None]]:
    blocks = make_blocks()
    own = DistributedDataParallel(copy.deepcopy(blocks) if is_copied else blocks)
    finder = torch.optim.SGD(own.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(finder, lambda step: 1.1**step)  # a cycle of references
    for _ in range(FINDER_STEPS):
        yield lambda own=own, finder=finder: update_all(own, finder)
        schedule.step()
    del own, finder, schedule
    model = DistributedDataParallel(blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        yield lambda: update_all(model, optimizer)


def train_layers() -> Iterator[Callable[[], None]]:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers)
    optimizers = [torch.optim.AdamW([each], lr=1e-4) for each in model.parameters()]
    for _ in range(STEPS):
        yield lambda: update_all(model, *optimizers)


def train_in_hooks() -> Iterator[Callable[[], None]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    optimizers = {each: torch.optim.AdamW([each], lr=1e-4) for each in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS):
        yield lambda: compute_loss(model).backward()


def train_gan() -> Iterator[Callable[[], None]]:
    generator, discriminator = make_model(), make_model()
    of_generator = torch.optim.AdamW(generator.parameters(), lr=1e-4)
    of_discriminator = torch.optim.AdamW(discriminator.parameters(), lr=1e-4)

    def update() -> None:
        for _ in range(GENERATOR_EVERY):
            with torch.no_grad():
                made = generator(torch.randn(SHAPE))
            discriminator(made).square().mean().backward()
            of_discriminator.step()
            of_discriminator.zero_grad()
        discriminator(generator(torch.randn(SHAPE))).square().mean().backward()
        of_generator.step()
        of_generator.zero_grad()
        of_discriminator.zero_grad()

    for _ in range(STEPS):
        yield update


def train_scaled() -> Iterator[Callable[[], None]]:
    model = make_model()
    parameters = list(model.parameters())
    optimizers = [torch.optim.AdamW(parameters[start::2], lr=1e-4) for start in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    steps = itertools.count()

    def update() -> None:
        scaler.scale(compute_loss(model)).backward()
        if next(steps) % OVERFLOW_EVERY == 0:
            parameters[0].grad.fill_(torch.inf)
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()

    for _ in range(STEPS):
        yield update


def unfreeze() -> Iterator[Callable[[], None]]:
    blocks = make_blocks()
    blocks[0].requires_grad_(False)
    model = DistributedDataParallel(blocks)
    optimizers = [torch.optim.AdamW([each for each in blocks.parameters() if each.requires_grad], lr=1e-4)]
    for _ in range(UNFROZEN_AT):
        yield lambda: update_all(model, *optimizers)
    blocks[0].requires_grad_(True)
    model = DistributedDataParallel(blocks)
    optimizers.append(torch.optim.AdamW(blocks[0].parameters(), lr=1e-4))
    for _ in range(STEPS):
        yield lambda: update_all(model, *optimizers)


FORMS: dict[str, Callable[[], Iterator[Callable[[], None]]]] = {
    "finder": find_rate,
    "copied-finder": lambda: find_rate(is_copied=True),
    "layers": train_layers,
    "hooks": train_in_hooks,
    "gan": train_gan,
    "scaler": train_scaled,
    "unfreeze": unfreeze,
}


if __name__ == "__main__":
    main()
