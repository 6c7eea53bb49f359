"""Record training code and check it against the limits of its test, for zprof's pytest plugin.

Nothing here depends on pytest, and nothing is imported before a test uses it.
"""
