"""Polls collectives within a memory window, as some engines do; one gloo rank."""

import torch
import torch.distributed as dist

from zprof.collectors.memory.collector import MemoryCollector

COLLECTIVES = 1500


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    collector = MemoryCollector(None, None)
    collector.start()
    for _ in range(COLLECTIVES):
        work = dist.all_reduce(torch.ones(64), async_op=True)
        while not work.is_completed():
            pass
    collector.stop()
    assert collector.gaps() == []
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
