"""Time is FLOPs over speed, and reads well."""

import subprocess
import sys

import pytest

from lmworks.plan.time import readable_time, training_time_s


def test_chinchilla_sized_question_by_hand():
    """70e9 parameters, 15e12 tokens, 1024 H100 of 989 TFLOP/s at 50 %: 6 N D / speed = 144 days."""
    seconds = training_time_s(
        num_tokens=15 * 10**12,
        flops_per_token=6 * 70 * 10**9,
        peak_flops_per_s=1024 * 989e12,
        mfu=0.5,
    )
    assert seconds / 86400 == pytest.approx(144.0, rel=0.001)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (200, "3 min 20 s"),
        (5 * 3600 + 420, "5 h 07 min"),
        (12 * 86400 + 3 * 3600, "12 d 3 h"),
        (1200 * 365.25 * 86400, "1,200.0 years"),
    ],
)
def test_time_is_readable(seconds, text):
    assert readable_time(seconds) == text


def test_planning_needs_no_torch():
    code = (
        "import sys, lmworks.plan.memory, lmworks.plan.time, lmworks.plan.hardware;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
