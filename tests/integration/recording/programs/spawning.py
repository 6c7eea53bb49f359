"""Trains with a loader of spawned workers, whose data set is a class of this script."""

import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((4,), float(index**2))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(abs, [1, -2, 3]))
    context = multiprocessing.get_context("spawn")
    for number, batch in enumerate(DataLoader(Squares(), 1, num_workers=1, multiprocessing_context=context)):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(number, batch.sum().item(), flush=True)
