"""Pure functions: tables of a run in, frozen values out."""
