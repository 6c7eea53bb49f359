"""Timeline of one step on the screen: the visible window, the cursor, and descriptions."""
