"""Who owns a storage, read from model and optimizer themselves."""
