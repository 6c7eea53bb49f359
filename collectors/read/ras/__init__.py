"""Read what ncclras answers about a job: its communicators, and ranks that are behind or silent."""
