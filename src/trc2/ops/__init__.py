"""Functions with gradients of our own, each beside its plain twin: tensors in, tensors out."""
