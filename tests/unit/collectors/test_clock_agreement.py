"""The agreement on pings: every rank follows the first verdict, however late another comes or gives up."""

from typing import Any

import torch.distributed as dist

from zprof.collectors.clock import GO, STAY, UNEQUAL, agree_to_ping


class OthersFirst:
    """A store in which the other rank arrives after this one has looked for it: the moment of the race."""

    def __init__(self, store: dist.HashStore, other: list[str], schedule: str) -> None:
        self._store, self._other, self._schedule = store, other, schedule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def check(self, *_: Any) -> bool:
        if not self._other:
            self._other.append(agree_to_ping(self._store, 1, 2, self._schedule, 0.01))
        return False


def race(schedule: str) -> list[str]:
    verdicts: list[str] = []
    verdicts.append(agree_to_ping(OthersFirst(dist.HashStore(), verdicts, schedule), 0, 2, "time=8", 0.01))
    return verdicts


def test_a_rank_that_gives_up_while_the_last_one_arrives_goes_along() -> None:
    assert race("time=8") == [GO, GO]


def test_unequal_schedules_are_known_to_both() -> None:
    assert race("time=4") == [UNEQUAL, UNEQUAL]


def test_a_rank_that_comes_too_late_stays_too() -> None:
    store = dist.HashStore()
    assert [agree_to_ping(store, rank, 2, "time=8", 0.01) for rank in range(2)] == [STAY, STAY]


def test_each_recording_is_agreed_anew() -> None:
    store = dist.HashStore()
    for _ in range(2):
        assert agree_to_ping(store, 0, 1, "time=8", 0.01) == GO
