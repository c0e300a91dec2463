"""The learner service: owns the policy, the optimiser, the checkpoints and the metrics."""
