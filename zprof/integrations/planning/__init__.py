"""Run the planner on real modules: count a user's model, and verify a plan on a rank with fake tensors."""

from zprof.model.job import Job


def count_model(spec: str, job: Job) -> Job:
    """Return the counts of :func:`tasks.count_model` in the job; import the bridge only when called."""
    from zprof.integrations.planning import tasks

    return tasks.count_model(spec, job)
