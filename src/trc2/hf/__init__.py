"""The Hugging Face face. Nothing here is imported until transformers is."""
