"""TRC²: language models that keep learning."""

from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.errors import UserError
from trc2.model.hippocampus import Origin
from trc2.model.net import CortexNet

__version__ = "0.1.0"
__all__ = ["CortexNet", "Origin", "RunConfig", "TRC2Config", "UserError", "__version__", "load_recipe"]
