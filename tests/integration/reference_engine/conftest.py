"""Ranks that are started once for all tests of a session."""

from collections.abc import Iterator
from typing import Any

import pytest
from engine_ranks import RankPool


@pytest.fixture(scope="session")
def run_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """``run_on(2, "clip_worker", cases)``: what each of two ranks saw, by case."""
    pools: dict[int, RankPool] = {}

    def run(ranks: int, program: str, cases: dict[str, Any]) -> list[dict[str, Any]]:
        if ranks not in pools or not pools[ranks].is_alive:
            pools[ranks] = RankPool(ranks, tmp_path_factory.mktemp(f"ranks{ranks}"))
        return pools[ranks].run(program, cases)

    yield run
    for pool in pools.values():
        pool.close()
