"""Asks NVML about one device, and keeps what it would not say."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from zprof.collectors.devices.cuda import Cuda
from zprof.collectors.devices.handles import find_handle
from zprof.collectors.devices.queries import Query, all_queries
from zprof.collectors.devices.refusals import Refusal, Unseen, refusal
from zprof.model.gaps import Gap

Values = dict[str, Any]
_MOST_INT = 2**63 - 1
_THE_DEVICE = "all of them"


@dataclass(slots=True)
class _Record:
    """How often something was answered, and why it was not the last time that it was not."""

    answers: int = 0
    refused: Refusal | None = None

    @property
    def is_over(self) -> bool:
        return self.refused is not None and (self.refused.for_good or self.refused.lost)

    @property
    def is_gap(self) -> bool:
        return self.refused is not None and (self.answers == 0 or self.refused.lost)


class DeviceProbe:
    """One device, by torch's index.  What is refused for good is not asked for again."""

    def __init__(self, nvml: Any, cuda: Cuda, index: int) -> None:
        self.device = f"cuda:{index}"
        self._nvml, self._cuda, self._index = nvml, cuda, index
        self._handle: Any = None
        self._queries = all_queries()
        self._records = {what: _Record() for what in (_THE_DEVICE, *(query.what for query in self._queries))}

    def read(self, only: Collection[str] | None = None) -> Values:
        """Columns and their values now, of the queries that are named or of all; what is unknown is not
        among them.  NVML's errors never leave it."""
        reserved = self._cuda.reserved_bytes(self._index)
        values: Values = {"reserved_bytes": reserved}
        if self._handle is None:
            self._try(_THE_DEVICE, self._find)
        for query in self._queries if self._handle is not None else ():
            if only is None or query.what in only:
                values |= self._try(query.what, partial(self._answer, query, reserved))
        return values

    def gaps(self) -> list[Gap]:
        """One for each reason, with all that was never answered for it."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for what, record in self._records.items():
            if record.refused is not None and record.is_gap:
                by_reason.setdefault((record.refused.reason, record.refused.remedy), []).append(what)
        return [
            Gap(what=f"counters of {self.device}: {', '.join(whats)}", reason=reason, remedy=remedy)
            for (reason, remedy), whats in by_reason.items()
        ]

    def _answer(self, query: Query, reserved_bytes: int | None) -> Mapping[str, Any]:
        return _checked(query.ask(self._nvml, self._handle), reserved_bytes)

    def _find(self) -> Mapping[str, Any]:
        self._handle = find_handle(self._nvml, self._cuda.identity(self._index))
        return {}

    def _try(self, what: str, action: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        record = self._records[what]
        if record.is_over or self._records[_THE_DEVICE].is_over:
            return {}
        try:
            answer = action()
        except Exception as error:
            refused = refusal(self._nvml, error)
            self._records[_THE_DEVICE if refused.lost else what].refused = refused
            return {}
        record.answers += 1
        return answer


def _checked(answer: Mapping[str, Any], reserved_bytes: int | None) -> Mapping[str, Any]:
    """NVML says "not available" with the largest number of the type; and with process ids of another
    namespace it may list a stranger under ours, whose memory need not hold what torch reserved."""
    for column, value in answer.items():
        if value is not None and not 0 <= value <= _MOST_INT:
            raise Unseen(f"NVML answered {value} for {column}", "see whether nvidia-smi shows it")
    process_bytes = answer.get("process_bytes")
    if process_bytes is not None and reserved_bytes is not None and process_bytes < reserved_bytes:
        raise Unseen(
            "NVML shows less for this process id than torch has reserved: it is another process",
            "let the container see the host's process ids (docker run --pid=host)",
        )
    return answer
