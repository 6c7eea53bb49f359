"""Simulate sharded training jobs with known causes of slowness, and write them as Kineto traces.

A test bed that is independent of the diagnosis rules: jobs are drawn from public facts about models, clusters
and PyTorch, and the cost of a cause is the difference to the same job without it.
"""
