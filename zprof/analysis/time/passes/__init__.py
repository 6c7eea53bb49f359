"""Find the pass and unit that each gather of parameters and each reduction of gradients serves."""
