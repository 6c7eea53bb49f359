"""Watch a rank while it runs, and save what it has when it makes no progress."""
