"""How large messages are, how fast links move them, and what a step would be with others."""
