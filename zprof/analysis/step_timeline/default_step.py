"""Pick the rank and the step whose timeline is worth looking at first."""

from zprof.model.time import Time


def pick_rank_and_step(time: Time, rank: int | None = None) -> tuple[int, int] | None:
    """Return the rank with the most time outside compute, and its median step by wall time.

    Args:
        time: The measured times.
        rank: Pick the step of this rank.

    Returns:
        None if no step of the rank, or of any, was timed.
    """
    ranks = [entry for entry in time.per_rank if rank is None or entry.rank == rank]
    worst = max(ranks, key=lambda entry: entry.wall_ns - entry.compute_ns, default=None)
    if worst is None:
        return None
    steps = sorted((step.wall_ns, step.step) for step in time.steps if step.rank == worst.rank)
    return (worst.rank, steps[len(steps) // 2][1]) if steps else None
