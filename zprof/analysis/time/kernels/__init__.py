"""What the work of a rank costs by name: alone, beside collectives, and copying around them."""
