"""Read operation timelines of pipeline-parallel jobs."""
