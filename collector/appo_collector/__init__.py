"""The collector service: steps environments with a copy of the actor and sends rollouts."""
