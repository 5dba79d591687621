"""Who looks at a terminal."""

import pytest

from warren.model.errors import RateLimited
from warren.sessions.terminal_viewers import TerminalViewers


def test_one_terminal_has_so_many_viewers_and_no_more() -> None:
    viewers = TerminalViewers(most=2)
    with viewers.viewing("ses_1", "shell"):
        with viewers.viewing("ses_1", "shell"), viewers.viewing("ses_1", "other"):
            with pytest.raises(RateLimited), viewers.viewing("ses_1", "shell"):
                pass
            assert repr(viewers) == "<TerminalViewers 3 of 2 terminals>"
        with viewers.viewing("ses_1", "shell"):
            pass
    assert repr(viewers) == "<TerminalViewers 0 of 0 terminals>"
