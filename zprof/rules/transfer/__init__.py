"""How collectives move their bytes, and when."""
