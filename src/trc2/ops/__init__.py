"""Functions with gradients of our own, each beside its plain version: tensors in, tensors out.

A file holds the function that modules call, then its plain version `plain_…`, then the `torch.autograd.Function` with
our gradient. The plain version is the same equation in torch operations. Tests compare our gradients with those that
autograd gives it. `with_gradient` chooses between them. Without gradients the plain version runs, or our own forward
pass where that takes less time or memory. `dtypes` and `selection` have no gradients of their own.
"""
