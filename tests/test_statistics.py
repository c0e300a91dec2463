from __future__ import annotations

import pytest

from appo_common.messages import MAX_EPISODES, Episodes
from appo_learner.statistics import EpisodeWindow, Rate, mean


def episodes(*returns: float, timeout: bool = False, length: int = 10, **terms: list[float]) -> Episodes:
    count = len(returns)
    return Episodes(returns=list(returns), lengths=[length] * count, timeouts=[timeout] * count, terms=terms)


def test_an_empty_window_knows_nothing() -> None:
    window = EpisodeWindow()
    window.add(episodes())
    assert (window.return_mean(), window.length_mean(), window.timeout_rate(), window.terms()) == (None, None, None, {})


def test_means_are_over_episodes_and_not_over_rollouts() -> None:
    window = EpisodeWindow()
    window.add(episodes(1.0, 2.0, 6.0, length=30, track=[1.0, 1.0, 4.0], torque=[-1.0, 0.0, 0.0]))
    window.add(episodes(11.0, timeout=True, length=110, track=[10.0], torque=[-3.0]))
    assert window.return_mean() == 5.0
    assert window.length_mean() == 50.0
    assert window.timeout_rate() == 0.25
    assert window.terms() == {"track": 4.0, "torque": -1.0}


def test_only_the_last_hundred_episodes_count() -> None:
    window = EpisodeWindow()
    window.add(episodes(*[1000.0] * 50, timeout=True))
    for number in range(MAX_EPISODES):
        window.add(episodes(float(number)))
    assert window.return_mean() == 49.5
    assert window.timeout_rate() == 0.0
    assert MAX_EPISODES == 100


def test_one_rollout_may_bring_more_episodes_than_the_window_holds() -> None:
    window = EpisodeWindow()
    window.add(episodes(*map(float, range(250))))
    assert window.return_mean() == sum(range(150, 250)) / 100


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_growth_per_second_over_the_last_five() -> None:
    clock = Clock()
    rate = Rate(clock)
    assert rate.note(500) == 0.0
    clock.now += 2.0
    assert rate.note(700) == 100.0
    clock.now += 3.0
    assert rate.note(2700) == pytest.approx(2200 / 5)
    clock.now += 3.0  # the first point is 8 s old now, the second 6 s: both are left out
    assert rate.note(2760) == pytest.approx(60 / 3)


def test_a_rate_over_one_long_pause_is_that_of_the_pause() -> None:
    clock = Clock()
    rate = Rate(clock)
    rate.note(0)
    clock.now += 60.0
    assert rate.note(600) == 10.0
    clock.now += 60.0
    assert rate.note(600) == 0.0, "nothing has happened since"


def test_readings_at_one_moment_have_no_rate() -> None:
    rate = Rate(Clock())
    assert [rate.note(count) for count in (0, 10, 20)] == [0.0, 0.0, 0.0]


def test_the_mean_of_nothing_is_none() -> None:
    assert mean([]) is None
    assert mean(iter([1, 2, 6])) == 3.0
