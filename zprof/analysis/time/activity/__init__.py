"""What one rank did when: its events, its steps, when communication blocked it."""
