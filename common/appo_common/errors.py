"""Every error a user can meet, and the exit code it ends the program with.

::

    AppoError                    exit code 1
    ├── ConfigError              2   a file, option or value the user must change
    ├── RefusedError             3   the learner would not admit this collector
    ├── EnvironmentFault         1   an environment broke its contract or raised
    ├── ProtocolError            -   a message that cannot be used; dropped and counted, never raised to the user
    └── SharedMemoryError        -   a segment could not be made or mapped; the transport falls back to TCP
"""

from __future__ import annotations


class AppoError(Exception):
    """Base of all errors raised on purpose. Its text is meant for the user, without a traceback."""

    exit_code = 1


class ConfigError(AppoError):
    """Wrong usage or configuration. Names the place, the key, the value and the remedy."""

    exit_code = 2


class RefusedError(AppoError):
    """The learner refused this collector; its text is the learner's reason."""

    exit_code = 3


class EnvironmentFault(AppoError):
    """An environment raised, or returned something that its spec does not allow."""


class ProtocolError(AppoError):
    """A message from a peer that is malformed, foreign or outdated."""

    def __init__(self, reason: str, detail: str) -> None:
        """Keep ``reason`` (a short counter name such as ``"old incarnation"``) apart from the detail."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class SharedMemoryError(AppoError):
    """A shared-memory segment could not be created or mapped."""
