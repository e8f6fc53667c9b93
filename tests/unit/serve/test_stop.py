"""Stop strings across arbitrary cuts of the text."""

from hypothesis import given
from hypothesis import strategies as st

from lmworks.serve.stop import StopMatcher

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)
PIECES = st.lists(st.text("ab\n", max_size=5), max_size=8)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.finish(), matcher.stopped


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """Grow the text by one character until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


@given(STOPS, PIECES)
def test_cuts_do_not_change_the_result(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == expected(stops, "".join(pieces))


@given(STOPS, PIECES)
def test_no_text_is_let_out_before_it_is_certain(stops: list[str], pieces: list[str]) -> None:
    final, _ = run(stops, pieces)
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        out += matcher.feed(piece)
        assert final.startswith(out)


def test_text_that_cannot_begin_a_stop_string_is_not_held_back() -> None:
    matcher = StopMatcher(["\nUser:"])
    assert matcher.feed("hello") == "hello"
    assert matcher.feed(" you\nU") == " you"
    assert matcher.feed("nited") == "\nUnited"


def test_nothing_follows_a_stop_string() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("a END b") == "a "
    assert matcher.feed("c") == ""
    assert matcher.finish() == ""
