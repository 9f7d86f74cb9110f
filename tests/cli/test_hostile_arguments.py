"""What is typed is told back as plain signs in one line."""

import pytest

from tests.render.test_hostile_names import NAMES, OBEYED

#: Commands that tell back a name, of which each name meets a third in turn.
TELLING = [
    ("cost", "--attention", "{}"), ("derive", "{}"), ("cost", "--phase", "{}"), ("{}",),
    ("cost", "--{}"), ("plot", "{}.json"), ("derive", "{}.py:X"), ("cost", "--set", "{}"),
    ("history", "{}"), ("verify-formula", "{}", "standard"), ("derive", "standard", "--at", "{}"),
    ("cost", "-o", "{}/x"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_a_message_of_the_command_line_is_one_line_of_plain_signs(attnprof, place):
    name = [*NAMES.values()][place].replace("\0", "")  # which no argument can hold
    for words in TELLING[place % 3 :: 3]:
        typed = tuple(word.replace("{}", name) for word in words)
        ended = attnprof(typed)
        assert ended.code == 2, (typed, ended.err)
        assert ended.err.count("\n") == 1
        assert not OBEYED.search(ended.err)
