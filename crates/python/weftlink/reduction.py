"""Reduction operations."""

from __future__ import annotations

import enum


class Reduction(str, enum.Enum):
    """A reduction. Calls take these or their names: ``"sum"`` is ``Reduction.SUM``."""

    SUM = "sum"
    PRODUCT = "prod"
    MINIMUM = "min"
    MAXIMUM = "max"
    AVERAGE = "avg"
    LOGICAL_AND = "logical-and"
    LOGICAL_OR = "logical-or"
    LOGICAL_XOR = "logical-xor"
    BIT_AND = "bit-and"
    BIT_OR = "bit-or"
    BIT_XOR = "bit-xor"


class PremultipliedSum:
    """The sum of all ranks' elements, with this rank's multiplied by a factor first. For floating-point numbers.

    An in-place call multiplies the whole array.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor


def operation_of(operation: str | Reduction | PremultipliedSum) -> tuple[str, float | None]:
    """The operation's name and factor."""
    if type(operation) is str:
        return operation, None
    if isinstance(operation, PremultipliedSum):
        return "premul-sum", operation.factor
    return Reduction(operation).value, None
