"""Tasks simulated in a batch with MuJoCo: the base class, the bundled tasks, and twins of Gymnasium's."""
