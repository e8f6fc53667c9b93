"""Learning-rate schedules at their borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lmworks.base.errors import ConfigError
from lmworks.train.schedule import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    ScheduleConfig,
    WSDSchedule,
)

ALL = [
    CosineSchedule(warmup_steps=10),
    WSDSchedule(warmup_steps=10),
    WSDSchedule(warmup_steps=10, decay_shape="linear"),
    LinearSchedule(warmup_steps=10),
    ConstantSchedule(warmup_steps=10),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_warm_up_moves_from_the_first_step_and_reaches_the_peak(schedule):
    assert schedule.lr_at(0, 100, 2.0) == pytest.approx(0.2)
    assert schedule.lr_at(9, 100, 2.0) == 2.0
    assert schedule.lr_at(10, 100, 2.0) == 2.0


@pytest.mark.parametrize(
    ("schedule", "middle", "end"),
    [
        (CosineSchedule(final_ratio=0.2), 0.6, 0.2),
        (LinearSchedule(final_ratio=0.2), 0.6, 0.2),
        (WSDSchedule(decay_fraction=0.5, final_ratio=0.2), 1.0, 0.2),
        (ConstantSchedule(), 1.0, 1.0),
    ],
    ids=lambda s: getattr(s, "kind", None),
)
def test_values_at_the_start_the_middle_and_the_end(schedule, middle, end):
    assert schedule.lr_at(0, 100) == pytest.approx(1.0)
    assert schedule.lr_at(50, 100) == pytest.approx(middle)
    assert schedule.lr_at(100, 100) == pytest.approx(end)
    assert schedule.lr_at(1000, 100) == pytest.approx(end)


@pytest.mark.parametrize(("shape", "quarter"), [("linear", 0.75), ("sqrt", 0.5)])
def test_wsd_decays_in_the_shape_asked_for(shape, quarter):
    schedule = WSDSchedule(decay_fraction=0.4, decay_shape=shape)
    assert schedule.lr_at(60, 100) == 1.0
    assert schedule.lr_at(70, 100) == pytest.approx(quarter)


@given(schedule=st.sampled_from(ALL), total=st.integers(13, 500), step=st.integers(0, 600))
def test_the_factor_stays_in_range_and_never_rises_after_warm_up(schedule, total, step):
    factor = schedule.lr_at(step, total)
    assert 0.0 <= factor <= 1.0
    if step >= schedule.warmup_steps:
        assert schedule.lr_at(step + 1, total) <= factor


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_a_warm_up_longer_than_the_run_is_refused(schedule):
    with pytest.raises(ConfigError, match=r"warmup_steps=10 is more than the 9 steps"):
        schedule.lr_at(0, 9)


def test_a_warm_up_that_reaches_into_the_decay_is_refused():
    schedule = WSDSchedule(warmup_steps=60, decay_fraction=0.5)
    with pytest.raises(ConfigError, match=r"the decay starts at step 50"):
        schedule.lr_at(60, 100)


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_the_kind_chooses_the_class(schedule):
    adapter = TypeAdapter(ScheduleConfig)
    assert adapter.validate_python(schedule.model_dump()) == schedule


def test_warm_up_of_the_whole_run_ends_at_the_peak():
    assert CosineSchedule(warmup_steps=5).lr_at(4, 5) == 1.0
