"""Terminal UI of zprof: report screens on which every number opens its formula and inputs."""
