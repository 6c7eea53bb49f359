"""Planted causes against what zprof finds: the cases, how one is judged, and the table."""
