"""Figures, one file per group; `gallery.py` lists them."""
