"""Records a program that knows nothing of zprof: finds its steps, its models and its optimizers by itself."""
