"""What callers give, checked by name and type before anything is sent: a wrong type on the wire would end the
connection that others share.

The methods' own hints are the table: `checked` reads those of a class once, when a method is first called. What is
called for each record is left out there, and looks at its arguments itself. Ranges are the options' (`options`), and
what is within a mapping or a message, a node's reader's, which is tried on it (`Connection.request`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, Literal, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

from mirrorlog.errors import BadRequest

_T = TypeVar("_T")
_Fits = Callable[[Any], bool]

_SECRET: Final = frozenset({"password", "password_hash", "tier_options"})
_NUMBER_END: Final = 2**64
_UNIONS: Final = (Union, types.UnionType)


def checked(
    *, but: Collection[str] = (), internal: Collection[str] = (), made: bool = False
) -> Callable[[type[_T]], type[_T]]:
    """For a class: each public method raises BadRequest naming the argument that is of a wrong type. `but`: methods
    that look for themselves; `internal`: names that are no user's, which tab completion leaves out; `made`: what it is
    made with is looked at, too."""

    def guard(kind: type[_T]) -> type[_T]:
        for name, method in list(vars(kind).items()):
            public = not name.startswith("_") or (made and name == "__init__")
            if public and name not in but and name not in internal and isinstance(method, types.FunctionType):
                setattr(kind, name, _guarded(method))
        if internal:
            kind.__dir__ = lambda self: [name for name in object.__dir__(self) if name not in internal]  # type: ignore[method-assign]
        return kind

    return guard


def check_known(options: Iterable[str], called: str, takes: Callable[..., object]) -> None:
    """Of keywords that go on to another method. Raises TypeError, as Python does, of the one that was called."""
    if unknown := [name for name in options if name not in inspect.signature(takes).parameters]:
        raise TypeError(f"{called}() got an unexpected keyword argument {unknown[0]!r}")


def refuse(name: str, value: object, expected: str) -> BadRequest:
    """For an argument of a wrong type: what was given, and what is expected."""
    shown = "" if name in _SECRET else f" {_shown(value)}"
    if type(value) is int and "int" in expected:
        return BadRequest(f"{name}{shown} does not fit into 64 bits")
    return BadRequest(f"{name}{shown} is {type(value).__name__}; give {expected}")


def _guarded(method: types.FunctionType) -> Any:
    if not _takes_arguments(method):
        return method
    table: _Table | None = None

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal table
        if table is None:
            table = _Table(method)
        table.check(given, named)

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def awaited(self: object, *given: Any, **named: Any) -> Any:
            check(given, named)
            return await method(self, *given, **named)

        return awaited

    @wraps(method)
    def called(self: object, *given: Any, **named: Any) -> Any:
        check(given, named)
        return method(self, *given, **named)

    return called


def _takes_arguments(method: types.FunctionType) -> bool:
    """Besides its object; told by its code, for signatures of a hundred methods would be most of an import."""
    code = method.__code__
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bool(code.co_argcount + code.co_kwonlyargcount > 1 or takes_more)


class _Table:
    """What fits each parameter of a method."""

    def __init__(self, method: types.FunctionType) -> None:
        self._positional: list[str] = []
        self._rest: str | None = None
        self._fits: dict[str, tuple[_Fits, str]] = {}
        for each in list(inspect.signature(method).parameters.values())[1:]:
            hint = _evaluated(each.annotation, method)
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                self._positional.append(each.name)
            elif each.kind == each.VAR_POSITIONAL:
                self._rest = each.name
            elif each.kind == each.VAR_KEYWORD:
                if get_origin(hint) is Unpack:
                    options = get_args(hint)[0]
                    for name, kind in get_type_hints(options).items():
                        self._fits[name] = _fits(kind), _words(options.__annotations__[name])
                continue
            self._fits[each.name] = _fits(hint), _words(each.annotation)

    def check(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What has a name that nobody knows is Python's to refuse."""
        for index, value in enumerate(given):
            name = self._positional[index] if index < len(self._positional) else self._rest
            if name is not None:
                self._one(name, value)
        for name, value in named.items():
            self._one(name, value)

    def _one(self, name: str, value: object) -> None:
        fits, words = self._fits.get(name, (_anything, ""))
        if not fits(value):
            raise refuse(name, value, words)


def _evaluated(annotation: object, method: types.FunctionType) -> Any:
    """A hint that stands for type checkers alone says nothing here."""
    if not isinstance(annotation, str):
        return Any
    try:
        return eval(annotation, method.__globals__)
    except NameError:
        return Any


def _words(annotation: object) -> str:
    text = annotation.__forward_arg__ if hasattr(annotation, "__forward_arg__") else str(annotation)
    return text.replace(" | ", " or ")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return "it"
    return text if len(text) <= 40 else f"{text[:40]}…"


# --- What fits a hint -------------------------------------------------------------------------------------------------


def _anything(value: object) -> bool:
    return True


def _fits(hint: Any) -> _Fits:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        each_of = [_fits(each) for each in inner]
        return lambda value: any(fits(value) for fits in each_of)
    if origin is Literal:
        return lambda value: any(value == each and type(value) is type(each) for each in inner)
    if hint is None or hint is types.NoneType:
        return lambda value: value is None
    if hint in _PLAIN:
        return _PLAIN[hint]
    return _container(hint if origin is None else origin, inner)


def _container(kind: Any, inner: tuple[Any, ...]) -> _Fits:
    if kind is cast(Any, Callable):
        return callable
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return _anything
    if kind in (list, tuple, Sequence):
        fits = _fits(inner[0]) if inner and kind is not tuple else _anything
        return lambda value: (
            isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(fits(each) for each in value)
        )
    if issubclass(kind, Mapping) and len(inner) == 2:
        key_fits, value_fits = map(_fits, inner)
        return lambda value: (
            isinstance(value, Mapping) and all(key_fits(key) and value_fits(each) for key, each in value.items())
        )
    if kind is Iterable:  # it can be read once
        return lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return lambda value: isinstance(value, kind)


def is_text(value: object) -> bool:
    """Half a pair of surrogates is in no UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_NUMBER_END <= value <= _NUMBER_END


_PLAIN: Final[Mapping[Any, _Fits]] = {
    Any: _anything,
    object: _anything,
    str: is_text,
    int: _is_int,
    float: lambda value: isinstance(value, float) or _is_int(value),
    bool: lambda value: isinstance(value, bool),
}
