"""Text out of a model: sampling, and text for replay that the model writes itself."""
