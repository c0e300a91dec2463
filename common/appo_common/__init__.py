"""What both services share: configuration, the wire protocol, shared memory and model building."""

__version__ = "0.1.0"
