"""AdamW on shards: update, loss scale and clipping."""
