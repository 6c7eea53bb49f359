"""Two runs side by side as plain text."""
