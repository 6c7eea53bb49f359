"""Average gradients over the ranks, and store them until then."""
