"""Values of a host's own types, made of JSON values that fit the schema of their type.

This converter knows nothing of the runtime's own data. It coerces nothing but an integer to a number, and it collects
all misfits: what a class's own validators and converters refuse is told in their words.
"""

from typing import Any

import cattrs

from roder_trio.codec.text import encode_bool, encode_int, encode_str

_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)


def _number(value: object, _: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"expected a number, not {type(value).__name__}")
    return float(value)


_converter.register_structure_hook(str, encode_str)
_converter.register_structure_hook(int, encode_int)
_converter.register_structure_hook(bool, encode_bool)
_converter.register_structure_hook(float, _number)


def structure(value: Any, kind: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the value of type `kind`, or None and what of it doesn't fit."""
    try:
        return _converter.structure(value, kind), ()
    except cattrs.BaseValidationError as error:
        return None, tuple(cattrs.transform_error(error, format_exception=_told))
    except Exception as error:  # the class is the host's, and so is what it raises
        return None, (f"{_told(error, kind)} @ $",)


def _told(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error) or type(error).__name__
