"""Two models and two optimizers; the discriminator steps twice for each step of the generator."""

import torch


class Generator(torch.nn.Linear):
    pass


class Discriminator(torch.nn.Linear):
    pass


torch.manual_seed(0)
generator, discriminator = Generator(8, 32), Discriminator(32, 1)
of_generator = torch.optim.Adam(generator.parameters())
of_discriminator = torch.optim.SGD(discriminator.parameters(), lr=0.01, momentum=0.9)
for step in range(9):
    for _ in range(2):
        of_discriminator.zero_grad()
        fake = discriminator(generator(torch.randn(16, 8)).detach())
        (fake.mean() - discriminator(torch.randn(16, 32)).mean()).backward()
        of_discriminator.step()
    of_generator.zero_grad()
    loss = -discriminator(generator(torch.randn(16, 8))).mean()
    loss.backward()
    of_generator.step()
    print(f"{step} {loss.item():.6f}", flush=True)
