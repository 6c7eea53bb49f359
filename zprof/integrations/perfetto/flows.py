"""Arrows from the rank that came last to a collective to the ranks that waited for it."""

from collections.abc import Iterator, Mapping

import pandas as pd

from zprof.integrations.perfetto.entries import flow_lines

MOST_ARROWS = 20_000
#: Process and thread of a collective's slice, by the index of its row in the table.
Places = Mapping[int, tuple[int, int]]


class Arrows:
    """At most ``MOST_ARROWS`` of them, those of the first collectives; ``left_out`` counts the others."""

    def __init__(self, collectives: pd.DataFrame, places: Places, base_ns: int) -> None:
        self._collectives, self._places, self._base_ns = collectives, places, base_ns
        self.left_out = 0

    def lines(self) -> Iterator[str]:
        """Two lines an arrow; both ends lie at the start of a slice."""
        frame = self._collectives
        drawn = frame[frame["matched"].astype(bool) & frame.index.isin(list(self._places))]
        number = 0
        for _, rows in drawn.groupby("instance", sort=False):
            ordered = rows.sort_values(["start_ns", "rank"])
            kind, last = str(ordered["kind"].iloc[0]), self._end(ordered, -1)
            for position in range(len(ordered) - 1):
                if number == MOST_ARROWS:
                    self.left_out += 1
                    continue
                number += 1
                yield from flow_lines(number, kind, last, self._end(ordered, position))

    def _end(self, rows: pd.DataFrame, position: int) -> tuple[int, int, int]:
        start_ns = int(rows["start_ns"].iloc[position])
        return (*self._places[rows.index[position]], start_ns - self._base_ns)
