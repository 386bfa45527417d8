"""The version of this package; a checkout that is not installed has no other record of it."""

__version__ = "0.1.0"
