"""Parts any language model could use: tensors in, tensors out."""
