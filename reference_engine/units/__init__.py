"""How parameters are grouped and where they lie: flat storages and the part that each rank owns."""
