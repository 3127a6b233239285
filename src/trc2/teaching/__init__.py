"""Teach documents to a saved model without training, make it forget them, and show which of them it recalls."""
