"""Processes that train together: how they start, find each other and exchange tensors."""
