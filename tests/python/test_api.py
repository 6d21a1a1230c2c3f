"""Every public name of the package has a docstring and complete annotations.

Public are the names of strata.__all__, the functions and classes of the submodules, and the methods and properties of
these classes, where no part of the name begins with an underscore.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import strata
from torch import nn


def public_modules() -> Iterator[ModuleType]:
    """The package and its public submodules, but for those whose optional libraries are not installed."""
    yield strata
    for info in pkgutil.walk_packages(strata.__path__, "strata."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            yield importlib.import_module(info.name)  # strata.inject is a function as an attribute and a module here
        except ModuleNotFoundError as error:
            if (error.name or "strata").split(".")[0] == "strata":
                raise


def missing_annotations(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.annotation is inspect.Parameter.empty and parameter.name not in ("self", "cls"):
            yield f"{name}: no annotation of {parameter.name}"
    if signature.return_annotation is inspect.Signature.empty:
        yield f"{name}: no annotation of the result"


def function_problems(name: str, function: Any, needs_docstring: bool = True) -> Iterator[str]:
    if needs_docstring and not (function.__doc__ or "").strip():
        yield f"{name}: no docstring"
    yield from missing_annotations(name, function)


def overrides_foreign_method(cls: type, name: str) -> bool:
    """Whether the method replaces one of another library, which documents it. forward() of a module does not count."""
    bases = [base for base in cls.__mro__[1:] if not base.__module__.startswith("strata")]
    return name != "forward" and any(name in vars(base) for base in bases)


def class_problems(name: str, cls: type) -> Iterator[str]:
    if not (vars(cls).get("__doc__") or "").strip():
        yield f"{name}: no docstring"
    for method, value in vars(cls).items():
        special = method.startswith("__") and method.endswith("__")
        if method.startswith("_") and not special:
            continue
        if isinstance(value, property):
            function = value.fget
        elif isinstance(value, (classmethod, staticmethod)):
            function = value.__func__
        elif inspect.isfunction(value):
            function = value
        else:
            continue
        if function.__module__.startswith(cls.__module__.split(".")[0]):  # not what a decorator generated
            needs_docstring = not special and not overrides_foreign_method(cls, method)
            yield from function_problems(f"{name}.{method}", function, needs_docstring)


def problems_of(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from class_problems(name, value)
    elif inspect.isfunction(value):
        yield from function_problems(name, value)


def test_public_names_are_documented_and_annotated() -> None:
    found = {}
    for name in strata.__all__:
        found[id(getattr(strata, name))] = list(problems_of(f"strata.{name}", getattr(strata, name)))
    for module in public_modules():
        if not (module.__doc__ or "").strip():
            found[id(module)] = [f"{module.__name__}: no docstring"]
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own and not name.startswith("_") and id(value) not in found:
                found[id(value)] = list(problems_of(f"{module.__name__}.{name}", value))
    problems = sorted(problem for problems in found.values() for problem in problems)
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems)


def test_all_names_exist_once_and_are_sorted() -> None:
    assert [name for name in strata.__all__ if not hasattr(strata, name)] == []
    assert list(strata.__all__) == sorted(set(strata.__all__))


def test_submodules_are_found() -> None:
    names = {module.__name__ for module in public_modules()}
    assert {"strata", "strata.hkt", "strata.hsa", "strata.hsa_ops", "strata.inject", "strata.ops", "strata.tree"} <= names
    assert not [name for name in names if "._" in name]


def test_the_check_finds_what_is_missing() -> None:
    class Undocumented(nn.Module):
        def __init__(self, size, *, bias: bool = False) -> None: ...

        def forward(self, x: int, *rest) -> int: ...

        def extra_repr(self) -> str: ...

        @property
        def size(self):
            """Has a docstring."""

        @classmethod
        def make(cls, **options: Any) -> None: ...

        def _hidden(self, x): ...

    assert list(problems_of("C", Undocumented)) == [
        "C: no docstring",
        "C.__init__: no annotation of size",
        "C.forward: no docstring",
        "C.forward: no annotation of rest",
        "C.size: no annotation of the result",
        "C.make: no docstring",
    ]
    assert list(problems_of("f", lambda x: x)) == [
        "f: no docstring",
        "f: no annotation of x",
        "f: no annotation of the result",
    ]
