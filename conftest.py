"""For the tests of zprof's pytest plugin: pytest within pytest."""

pytest_plugins = ["pytester"]
