"""`AutoModelForCausalLM` knows our models after `import trc2`, yet `import trc2` does not import transformers.

transformers takes several seconds to import and is optional. So we wait: when its registry of configs or of models is
imported, by whatever code, our classes are added right after.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

CONFIGS = "transformers.models.auto.configuration_auto"
MODELS = "transformers.models.auto.modeling_auto"


def register_when_imported() -> None:
    """Register now what transformers has loaded already, and the rest as it comes."""
    if not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
    for name in (CONFIGS, MODELS):
        if name in sys.modules:
            _register(name)


def _register(name: str) -> None:
    from trc2.hf.configuration import TRC2PretrainedConfig

    if name == CONFIGS:
        sys.modules[name].AutoConfig.register(TRC2PretrainedConfig.model_type, TRC2PretrainedConfig, exist_ok=True)
    else:
        from trc2.hf.modeling import TRC2ForCausalLM

        sys.modules[name].AutoModelForCausalLM.register(TRC2PretrainedConfig, TRC2ForCausalLM, exist_ok=True)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds the two registries as Python would, but lets them be followed by our registration."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (CONFIGS, MODELS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register(module.__name__)
