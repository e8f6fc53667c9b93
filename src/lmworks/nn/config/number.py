"""Ranges of numbers that configs share."""

from typing import Annotated

from pydantic import Field

NonNegativeFloat = Annotated[float, Field(ge=0)]
