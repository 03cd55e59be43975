"""Package exports that are imported on first use, so that `import headwise` and `--help` stay fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str, modules: dict[str, list[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` for `package`.

    Args:
        package: the package's `__name__`.
        modules: full module name → the names it provides.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return __getattr__, sorted(home)
