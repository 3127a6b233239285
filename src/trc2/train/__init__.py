"""The trainer: one page of loop, and what it needs around it.

Called, `trc2.train(…)` is the function `train` of `trc2.api`, see docs/python.md. A package and a public function
share the name, and Python binds a package's name to it wherever one of its modules is imported; so the package itself
can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return _public_train()(*arguments, **settings)

    @property
    def __signature__(self) -> Signature:
        return signature(_public_train())


def _public_train() -> Callable[..., Any]:
    """Found when it is called for: the API stands above the trainer."""
    found: Callable[..., Any] = import_module("trc2.api").train
    return found


sys.modules[__name__].__class__ = _CallableModule
