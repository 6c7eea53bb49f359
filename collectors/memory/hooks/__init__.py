"""What sees the program at work: modules, gradients, operators, saved tensors, collectives."""
