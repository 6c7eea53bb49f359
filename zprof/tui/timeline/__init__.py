"""Timeline of one step of one rank: lanes of events, exposed gaps, and the visible window."""
