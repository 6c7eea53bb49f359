"""What zprof's pytest plugin does: records a piece of training, and holds it to the limits of its test.

Nothing here knows pytest, and nothing is imported before a test uses it.
"""
