"""AdamW on shards: the update, the loss scale, clipping."""
