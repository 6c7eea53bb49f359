"""When parameters come and go: forward, backward, and looking ahead in their order."""
