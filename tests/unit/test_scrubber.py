"""Texts are replaced however they are cut into pieces, and in linear time whatever they are."""

import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from warren.sandboxes.egress.broker_http import Scrubber

_TEXTS = st.text("ab", min_size=8, max_size=200).map(str.encode)


@given(st.lists(_TEXTS, min_size=1, max_size=2), st.lists(_TEXTS | st.integers(0, 1), max_size=6), st.integers(1, 90))
def test_no_text_is_seen_however_it_is_cut(traces: Sequence[bytes], parts: Sequence[bytes | int], size: int) -> None:
    data = b"".join(traces[part % len(traces)] if isinstance(part, int) else part for part in parts)
    scrubber = Scrubber(traces)
    passed = b"".join(scrubber.feed(data[at : at + size]) for at in range(0, len(data), size)) + scrubber.end()
    assert len(passed) == len(data)
    assert not any(trace in passed for trace in traces)
    assert all(new in (old, ord("*")) for old, new in zip(data, passed, strict=True))


def test_what_begins_no_text_is_not_held_back() -> None:
    scrubber = Scrubber([b"secret" * 20])
    assert scrubber.feed(b"no secre") == b"no "
    assert scrubber.feed(b"d") == b"secred"


def test_texts_that_resemble_themselves_cost_no_more_than_others() -> None:
    data = b"a" * 65536

    def cost(traces: Sequence[bytes]) -> float:
        def once() -> float:
            scrubber, begun = Scrubber(traces), time.thread_time()
            scrubber.feed(data)
            return time.thread_time() - begun

        return min(once() for _ in range(3))

    alike = [b"a" * (4096 + number) + b"b" * (4096 - number) for number in range(20)]
    assert cost(alike) < 0.02  # 0.1, if each place where one may begin were compared
