"""The ranks that save or load together, and how they agree that nobody failed.

DCP exchanges plans, which are small, over the process group itself; so does this.  Both stand outside of
steps, and are not counted in ``Comm.moved``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from zprof.reference_engine.checkpoints.parts import Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    line: str
    is_value_error: bool


class Ranks:
    """All ranks of the mesh.  ``what`` begins every error."""

    def __init__(self, engine: Engine, what: str) -> None:
        model_parallel = 1 if engine.mp is None else engine.mp.world_size
        self.size = engine.comm.world_size * model_parallel
        self.alone = self.size == 1
        # None is the default group, the only one that a mesh of two dimensions can be.
        self.group: dist.ProcessGroup | None = None
        if model_parallel == 1:
            self.group = getattr(engine.comm, "process_group", None)
        self.rank = 0 if self.alone else dist.get_rank(self.group)
        self._what = what
        if not self.alone and dist.get_world_size(self.group) != self.size:
            raise RuntimeError(f"{what}: the default process group is not the mesh of {self.size} ranks")

    def together(self, action: Callable[[], T]) -> T:
        """Do something on every rank; where one fails, all do, with the same line."""
        mine, result = self._try(action)
        self._raise_first(self._exchange(mine))
        return result  # type: ignore[return-value]  # no rank failed, this one neither

    def on_first(self, action: Callable[[], None]) -> None:
        """Do something on the first rank, and go on everywhere when it is done."""
        self.together(action if self.rank == 0 else lambda: None)

    def collect(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank, and give all results to all."""
        return self._exchange(self.together(action))

    def call(self, action: Callable[[], Any]) -> None:
        """Call something that talks to the other ranks itself (DCP), its errors in one line."""
        try:
            action()
            return
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            failure = self._failure(cause, rank)
        except Exception as error:
            failure = self._failure(error, self.rank)
        # Outside of the handler: the frames of what failed keep the process group, which must be free to go.
        raise _raised(failure)

    def _try(self, action: Callable[[], T]) -> tuple[_Failure | None, T | None]:
        try:
            return None, action()
        except Exception as error:
            return self._failure(error, self.rank), None

    def _exchange(self, mine: T) -> list[T]:
        if self.alone:
            return [mine]
        everyone: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(everyone, mine, group=self.group)
            return everyone
        except RuntimeError as error:
            failure = self._failure(error, self.rank)
        raise _raised(failure)

    def _failure(self, error: BaseException, rank: int) -> _Failure:
        text = str(error).strip().split("\n")[0] or type(error).__name__
        if not isinstance(error, ValueError | RuntimeError):
            text = f"{type(error).__name__}: {text}"
        where = "" if self.alone else f" (rank {rank})"
        return _Failure(line=f"{self._what}: {text}{where}", is_value_error=isinstance(error, ValueError))

    def _raise_first(self, failures: list[_Failure | None]) -> None:
        for failure in failures:
            if failure is not None:
                raise _raised(failure)


def _raised(failure: _Failure) -> Exception:
    return ValueError(failure.line) if failure.is_value_error else RuntimeError(failure.line)
