"""One discrete-event model of a measured step: what would it take if this were different?"""
