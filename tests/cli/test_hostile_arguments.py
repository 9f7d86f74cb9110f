"""What is typed is told back as plain signs in one line."""

import pytest

from tests.render.test_hostile_names import NAMES, OBEYED


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_message_of_the_command_line_is_one_line_of_plain_signs(attnprof, name):
    name = name.replace("\0", "")  # which no argument can hold
    for words in (("cost", "--attention", name), ("derive", name), ("cost", "--phase", name),
                  (name,), ("cost", f"--{name}"), ("plot", f"{name}.json"),
                  ("derive", f"{name}.py:X"),
                  ("cost", "--set", name), ("history", name), ("verify-formula", name, "standard"),
                  ("derive", "standard", "--at", name), ("cost", "-o", f"{name}/x")):  # fmt: skip
        ended = attnprof(tuple(words))
        assert ended.code == 2, (words, ended.err)
        assert ended.err.count("\n") == 1
        assert not OBEYED.search(ended.err)
