"""Jobs of published sizes."""

from zprof.model.job import Batch, Degrees, Hardware, Job, Overlap, Residual, Unit

BLOCK_1T = 12 * 25600**2


def trillion(hardware: Hardware, tokens: int, units: int = 128, degrees: Degrees | None = None) -> Job:
    """128 blocks of hidden size 25600 in so many units, flat over 1024 devices, recomputed."""
    elements = 128 * BLOCK_1T // units
    return Job(
        parameters=128 * BLOCK_1T,
        units=tuple(Unit(name=f"u{i}", elements=elements) for i in range(units)),
        degrees=degrees or Degrees(dp=1024),
        batch=Batch(samples=1, sequence=tokens),
        residual=Residual(checkpointing=True),
        overlap=Overlap(keep_last=True),
        hardware=hardware,
    )


def seven(hardware: Hardware, tokens: int) -> Job:
    return Job(
        parameters=7_500_000_000,
        units=tuple(Unit(name=f"u{i}", elements=7_500_000_000 // 36) for i in range(36)),
        degrees=Degrees(dp=64),
        batch=Batch(samples=1, sequence=tokens),
        overlap=Overlap(keep_last=True),
        hardware=hardware,
    )
