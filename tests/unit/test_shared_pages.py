from warren.sessions.shared_pages import KEPT_S, SharedPages


def test_a_page_is_shared_until_something_is_written_and_not_for_long() -> None:
    now = 100.0
    pages = SharedPages(lambda: now)
    pages.keep("mine", 1, {"sessions": []})
    assert pages.find("mine", 1) == {"sessions": []}
    assert pages.find("mine", 2) is None
    assert pages.find("yours", 1) is None
    now += KEPT_S
    assert pages.find("mine", 1) is None


def test_without_revisions_no_page_is_shared_and_only_the_last_ones_are_kept() -> None:
    pages = SharedPages(lambda: 0.0)
    pages.keep("mine", None, {})
    assert pages.find("mine", None) is None
    for number in range(17):
        pages.keep(number, 1, {})
    assert [number for number in range(17) if pages.find(number, 1) is None] == [0]
