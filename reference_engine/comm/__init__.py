"""Exchange tensors between ranks."""
