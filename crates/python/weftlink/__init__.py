"""Multi-GPU communication, planned from the wiring."""

from weftlink.errors import Error

__all__ = ["Error"]
