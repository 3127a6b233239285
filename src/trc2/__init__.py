"""TRC²: language models that keep learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trc2.api import Run, SavedModel, continue_from, load_model, load_run, train
    from trc2.api.serve import serve
    from trc2.backbones.trc2 import CortexNet
    from trc2.config import RunConfig, StrategyConfig, TaskConfig, TRC2Config, load_recipe
    from trc2.config.metric import register_metric
    from trc2.errors import UserError
    from trc2.hf import MemoryCallback, TRC2ForCausalLM
    from trc2.nn.provenance import Origin
    from trc2.strategies import Strategy, register_strategy
    from trc2.system.plugins import MetricPlugin
    from trc2.versions.registry import Versions

__version__ = "0.2.0"
__all__ = [
    "CortexNet",
    "MemoryCallback",
    "MetricPlugin",
    "Origin",
    "Run",
    "RunConfig",
    "SavedModel",
    "Strategy",
    "StrategyConfig",
    "TRC2Config",
    "TRC2ForCausalLM",
    "TaskConfig",
    "UserError",
    "Versions",
    "__version__",
    "continue_from",
    "load_model",
    "load_recipe",
    "load_run",
    "register_metric",
    "register_strategy",
    "serve",
    "train",
]

# Where the public names live. They are imported at first use: torch takes seconds, transformers is optional too.
_HOMES = {
    "api": ("Run", "SavedModel", "continue_from", "load_model", "load_run", "serve", "train"),
    "backbones.trc2": ("CortexNet",),
    "config": ("RunConfig", "StrategyConfig", "TRC2Config", "TaskConfig", "load_recipe"),
    "config.metric": ("register_metric",),
    "errors": ("UserError",),
    "hf": ("MemoryCallback", "TRC2ForCausalLM"),
    "nn.provenance": ("Origin",),
    "strategies": ("Strategy", "register_strategy"),
    "system.plugins": ("MetricPlugin",),
    "versions.registry": ("Versions",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'trc2' has no attribute {name!r}")
    value = getattr(import_module(f"trc2.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
