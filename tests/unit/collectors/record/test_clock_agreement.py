"""The agreement on pings: every rank follows the first verdict, however late another comes or gives up."""

from typing import Any

import pytest
import torch.distributed as dist

from zprof.collectors.record.clock_pings import GO, STAY, UNEQUAL, agree_to_ping


class OthersFirst:
    """A store in which the other rank arrives right after this one has looked for it."""

    def __init__(self, store: dist.HashStore, verdicts: list[str], schedule: str) -> None:
        self._store, self._verdicts, self._schedule = store, verdicts, schedule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def check(self, *_: Any) -> bool:
        if not self._verdicts:
            self._verdicts.append(agree_to_ping(self._store, 1, 2, self._schedule, 0.01))
        return False


@pytest.mark.parametrize(("schedule", "verdict"), [("time=8", GO), ("time=4", UNEQUAL)])
def test_a_rank_that_gives_up_while_the_last_one_arrives_follows_it(schedule: str, verdict: str) -> None:
    verdicts: list[str] = []
    store = OthersFirst(dist.HashStore(), verdicts, schedule)
    verdicts.append(agree_to_ping(store, 0, 2, "time=8", 0.01))
    assert verdicts == [verdict, verdict]


def test_a_rank_that_comes_too_late_stays_too() -> None:
    store = dist.HashStore()
    assert [agree_to_ping(store, rank, 2, "time=8", 0.01) for rank in range(2)] == [STAY, STAY]


def test_each_recording_is_agreed_anew() -> None:
    store = dist.HashStore()
    assert [agree_to_ping(store, 0, 1, schedule, 0.01) for schedule in ("a", "b")] == [GO, GO]
