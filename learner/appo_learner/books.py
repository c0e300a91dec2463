"""What became of every rollout: sent = trained + discarded (by reason) + in flight + lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Book:
    """The account of one collector process over all its sessions."""

    index: int
    name: str
    sent: int = 0
    """Rollouts it is known to have sent."""
    received: int = 0
    trained: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    """By reason."""
    lost: int = 0
    """Sent, but never received: they died with a process or a connection."""

    @property
    def in_flight(self) -> int:
        """Rollouts on the way, or received and waiting to be trained on."""
        return self.sent - self.trained - self.discarded.total() - self.lost

    def as_dict(self) -> dict[str, int]:
        """Return the closing account; the discards are also given by reason."""
        return {
            "sent": self.sent,
            "trained": self.trained,
            "discarded": self.discarded.total(),
            "in_flight": self.in_flight,
            "lost": self.lost,
            **{f"discarded: {reason}": count for reason, count in sorted(self.discarded.items())},
        }
