"""Functions with gradients of our own, each beside its plain twin: tensors in, tensors out.

A file holds, from top to bottom, the function that modules call; its twin `plain_…`, the same equation in torch's own
words, with whose autograd gradients the tests compare ours; and the `torch.autograd.Function` with our gradient.
`with_gradient` chooses between them. Without gradients the twin runs or, where that would take more time or memory,
our own forward pass alone. `islands` and `selection` have no gradients of their own: the other files stand on them.
"""
