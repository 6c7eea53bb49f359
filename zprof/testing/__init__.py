"""Record a piece of training and check it against the limits of its test, for zprof's pytest plugin.

Nothing here knows pytest, and nothing is imported before a test uses it.
"""
