"""Read operation timelines of pipeline-parallel jobs: one Parquet table, or the times of each stage."""
