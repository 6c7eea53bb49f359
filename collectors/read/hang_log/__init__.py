"""Read the logs of stuck jobs: each line is evidence about one rank."""
