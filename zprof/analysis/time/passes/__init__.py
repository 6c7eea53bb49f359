"""Which pass of which unit each gather of parameters and each reduction of gradients serves."""
