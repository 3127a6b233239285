"""TRC²: language models that keep learning."""

from typing import TYPE_CHECKING, Any

from trc2.backbones.trc2 import CortexNet
from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.errors import UserError
from trc2.hf.registration import register_when_imported
from trc2.nn.provenance import Origin

if TYPE_CHECKING:
    from trc2.hf.callback import MemoryCallback
    from trc2.hf.modeling import TRC2ForCausalLM

__version__ = "0.1.0"
__all__ = [
    "CortexNet",
    "MemoryCallback",
    "Origin",
    "RunConfig",
    "TRC2Config",
    "TRC2ForCausalLM",
    "UserError",
    "__version__",
    "load_recipe",
]

register_when_imported()


def __getattr__(name: str) -> Any:
    """The Hugging Face face needs transformers, which is optional and slow to import: imported at first use."""
    homes = {"TRC2ForCausalLM": "trc2.hf.modeling", "MemoryCallback": "trc2.hf.callback"}
    if name not in homes:
        raise AttributeError(f"module 'trc2' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise UserError(f"trc2.{name} needs transformers: install it with `pip install 'trc2[hf]'`.") from None
