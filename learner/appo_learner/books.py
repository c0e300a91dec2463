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
    in_hand: int = 0
    """Received, and neither trained on nor discarded yet. Counted by itself, so that the account can be checked."""
    trained: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    """By reason."""
    lost: int = 0
    """Sent, but never received: they died with a process or a connection."""

    @property
    def missing(self) -> int:
        """Rollouts that have been sent and have not arrived."""
        return self.sent - self.received - self.lost

    @property
    def in_flight(self) -> int:
        """Rollouts on the way, or received and waiting to be trained on."""
        return self.missing + self.in_hand

    def receive(self, lost_before: int = 0) -> None:
        """Note that a rollout has arrived, and that ``lost_before`` older ones never will."""
        self.received += 1
        self.in_hand += 1
        self.lost += lost_before

    def settle(self, discarded: str | None = None) -> None:
        """Note that a rollout in hand was trained on, or discarded for a reason."""
        self.in_hand -= 1
        if discarded is None:
            self.trained += 1
        else:
            self.discarded[discarded] += 1

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
