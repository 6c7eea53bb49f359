"""Cache the timelines that were shown last, up to a number of rows."""

from collections import OrderedDict

from zprof.analysis.step_timeline.step_model import StepTimeline

#: Maximum number of cached timelines.
MAX_TIMELINES = 8
#: Maximum event rows of all cached timelines; the latest one is kept regardless of its size.
MAX_EVENT_ROWS = 4_000_000
RankStep = tuple[int, int]


class TimelineCache:
    """Least-recently-used cache of timelines by rank and step."""

    def __init__(self) -> None:
        self._models: OrderedDict[RankStep, StepTimeline] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def get(self, key: RankStep) -> StepTimeline | None:
        """Return the cached timeline, or None."""
        if key in self._models:
            self._models.move_to_end(key)
        return self._models.get(key)

    def put(self, key: RankStep, model: StepTimeline) -> None:
        """Cache a timeline and evict the least recently used ones over the limits."""
        self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > 1 and (
            len(self._models) > MAX_TIMELINES or self._count_rows() > MAX_EVENT_ROWS
        ):
            self._models.popitem(last=False)

    def clear(self) -> None:
        """Remove all timelines, because another run was loaded."""
        self._models.clear()

    def _count_rows(self) -> int:
        return sum(model.weight for model in self._models.values())
