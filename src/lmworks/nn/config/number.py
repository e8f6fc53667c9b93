"""Ranges of numbers that configs share."""

from typing import Annotated

from pydantic import Field

NonNegativeFloat = Annotated[float, Field(ge=0)]
TokenCount = Annotated[int, Field(gt=0, le=2**40)]
"""Length of a text; bounded, so that arithmetic on what a stranger's file says stays finite."""
