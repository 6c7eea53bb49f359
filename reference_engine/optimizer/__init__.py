"""AdamW on shards, with loss scaling and gradient clipping."""
