"""Values as a program has them: a pair of callables, `value -> bytes` where records are sent and `bytes -> value` where
they are read, as `json.dumps` and `json.loads` are.

`record.value` stays what was stored. `record.data` is made of it when it is asked for, each time, so nobody pays for
records that he passes over, and one that cannot be read is found by who asks for its data: the record is there to be
rejected, and the reader goes on. An absent value (a tombstone) is None on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrorlog.errors import BadInput

Serializer = Callable[[Any], bytes | str]
"""Text is UTF-8."""
Deserializer = Callable[[bytes], Any]


def serialized(serializer: Serializer, value: Any, where: str) -> bytes | str | None:
    """Raises BadInput, behind what the serializer raised. `where`: for what it is said."""
    if value is None:
        return None
    try:
        return serializer(value)
    except Exception as error:
        raise BadInput(f"the serializer for {where} failed: {type(error).__name__}: {error}") from error


def serialized_all(serializer: Serializer | None, values: Any, where: str) -> Any:
    """Each of a list; without a serializer any column, as it is. Raises BadInput, also for a column of bytes."""
    if serializer is None:
        return values
    if not isinstance(values, list | tuple):
        raise BadInput(
            f"values are {type(values).__name__}, a column of bytes, and the producer for {where} has a serializer: "
            "give a list of values, or use a producer without one"
        )
    return [serialized(serializer, value, where) for value in values]


def deserialized(deserializer: Deserializer | None, value: bytes | None, queue: str, queue_offset: int) -> Any:
    """The value itself without one. Raises BadInput naming the record, behind what the deserializer raised."""
    if value is None or deserializer is None:
        return value
    try:
        return deserializer(value)
    except Exception as error:
        raise BadInput(
            f"queue {queue!r}, queue offset {queue_offset}: the deserializer failed: {type(error).__name__}: {error}",
            queue=queue,
            queue_offset=queue_offset,
        ) from error
