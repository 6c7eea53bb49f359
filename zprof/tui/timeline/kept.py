"""The last few timelines, so that going back to one is at once; bounded by their number and their size."""

from collections import OrderedDict

from zprof.tui.timeline.model import StepModel

MOST = 8
#: Rows of events in all of them; the last one is kept, however large it is.
MOST_ROWS = 4_000_000
Key = tuple[int, int]


class Kept:
    """Timelines by rank and step, those used last."""

    def __init__(self) -> None:
        self._models: OrderedDict[Key, StepModel] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def get(self, key: Key) -> StepModel | None:
        """A kept one."""
        if key in self._models:
            self._models.move_to_end(key)
        return self._models.get(key)

    def put(self, key: Key, model: StepModel) -> None:
        """Keep one, and let go of the oldest where they are too many."""
        self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > 1 and (len(self._models) > MOST or self._rows() > MOST_ROWS):
            self._models.popitem(last=False)

    def clear(self) -> None:
        """Let go of all: another run was loaded."""
        self._models.clear()

    def _rows(self) -> int:
        return sum(model.weight for model in self._models.values())
