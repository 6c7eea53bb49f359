"""A run directory that grows as a job writes it, by the recorder's own writer."""

from pathlib import Path

from zprof.model.training import TrainingFacts
from zprof.run.manifest import STEPS_NAME, PlannedSteps, RunManifest, StepLine, encode_step, rank_folder
from zprof.run.writer import RankWriter

PLAN = PlannedSteps(skip=2, memory=1, time=3)
MS = 1_000_000
CREATED_NS = 1_800_000_000_000_000_000


class GrowingRun:
    """Ranks that take so many milliseconds for each step, from ``CREATED_NS`` on."""

    def __init__(self, path: Path, world_size: int = 2, run_id: str = "one") -> None:
        self.path, self._now = path, CREATED_NS
        self.manifest = RunManifest(
            zprof_version="0", created_ns=CREATED_NS, world_size=world_size, backend="gloo", device="cpu",
            training=TrainingFacts(engine="reference", stage=3), run_id=run_id, planned=PLAN,
        )  # fmt: skip
        self.writers = [RankWriter(path, rank, self.manifest) for rank in range(world_size)]

    def step(self, step: int, *rank_ms: float, **seen: int | str) -> None:
        """All ranks, or the first of them, finish a step."""
        for writer, milliseconds in zip(self.writers, rank_ms, strict=False):
            line = {
                "begin_ns": self._now,
                "end_ns": self._now + int(milliseconds * MS),
                "window": window(step),
            }
            writer.step_done(StepLine(step=step, **(line | seen)))  # type: ignore[arg-type]
        self._now += int(max(rank_ms) * MS)

    def raw(self, rank: int, content: bytes) -> None:
        """Bytes as they are at the end of a rank's log."""
        with (rank_folder(self.path, rank) / STEPS_NAME).open("ab") as file:
            file.write(content)

    def finish(self, status: str = "complete", *, memory: int = 0, time: int = 0) -> None:
        """All ranks write their manifests."""
        for writer in self.writers:
            writer.write_table("mark", {"time_ns": [1], "kind": ["step_begin"], "number": [0], "name": [""]})
            writer.finish(memory_steps=range(memory), time_steps=range(time), gaps=[], status=status)


def window(step: int) -> str:
    """That of a step of the plan."""
    if step < PLAN.skip:
        return ""
    return "memory" if step < PLAN.skip + PLAN.memory else "time"


def line(step: int) -> bytes:
    """A line that a rank could have written."""
    return encode_step(StepLine(step=step, begin_ns=CREATED_NS, end_ns=CREATED_NS + step))
