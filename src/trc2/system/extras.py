"""Packages that only some settings need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trc2.errors import UserError, brief


def import_bitsandbytes(setting: str) -> Any:
    """The package bitsandbytes, for 8-bit optimizers and 4-bit weights. Raises a UserError that names the setting."""
    try:
        return import_module("bitsandbytes")
    except ModuleNotFoundError:
        raise UserError(
            f"{setting} needs bitsandbytes: install it with `pip install '.[bitsandbytes]'` in the checkout, on a "
            "machine with a GPU, or leave the setting out."
        ) from None
    except (ImportError, OSError, RuntimeError) as error:  # it loads a library for the GPU that it finds
        raise UserError(
            f"{setting} needs bitsandbytes, which cannot be used here ({brief(error)}): repair its installation, or "
            "leave the setting out."
        ) from None
