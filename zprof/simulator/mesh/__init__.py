"""Jobs of several dimensions of parallelism: pipelines, tensor, context, expert and data parallel groups."""
