"""Optional packages: imported when an environment's name asks for them, with the install command when missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from appo_common.errors import ConfigError


def require(module: str, extra: str, name: str) -> ModuleType:
    """Import ``module`` for the environment that the configuration calls ``name``.

    Raises ConfigError with the command that installs the project's ``extra`` when the module, or one that it
    needs in turn, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error.name or module, extra, name) from error


def missing(module: str, extra: str, name: str) -> ConfigError:
    """Return the error that says which package ``name`` needs and how to get it."""
    return ConfigError(
        f"env.name: {name!r} needs the package {module.partition('.')[0]}, which is not installed here; "
        f"pip install 'appo[{extra}]' (in a clone: pip install -e '.[{extra}]')"
    )
