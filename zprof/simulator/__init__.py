"""Simulate sharded training jobs with known causes of slowness, and write them as Kineto traces.

A test bed that knows nothing of the rules of diagnosis: jobs are drawn from what is public about models,
clusters and PyTorch, and what a cause costs is the difference to the same job without it.
"""
