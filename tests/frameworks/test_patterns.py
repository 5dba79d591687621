"""Patterns and replacements, without a sandbox."""

import pytest

from warren.integrations.deepagents_results import PAGE_BYTES, _fit_page, replace_text
from warren.integrations.globs import Pattern, PatternRefused


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "deep/down/a.py", True),
        ("*.py", ".github/a.py", True),
        ("*.py", ".a.py", False),
        (".*", ".env", True),
        ("/*.py", "a.py", True),
        ("/*.py", "deep/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("**/*.py", ".github/a.py", False),
        ("src/**", "src/a/b", True),
        ("src/**", "src", False),
        ("src//a.py", "src/a.py", True),
        ("src/a.py/", "src/a.py", False),
        ("[^ab].py", "c.py", True),
        ("[^ab].py", "a.py", False),
        ("[!ab].py", "a.py", False),
        ("?.py", "a.py", True),
        ("?.py", "ab.py", False),
        ("*.{py,md}", "x/README.md", True),
        ("{a,b{c,d}}.py", "bd.py", True),
        ("{a}.py", "{a}.py", True),
        ("{a,b", "{a,b", True),
        ("**/*/**/*/**/*.x", "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p.y", False),
    ],
)
def test_a_pattern_means_what_deepagents_says(pattern: str, path: str, matches: bool) -> None:
    assert Pattern(pattern).matches(path) is matches


def test_without_a_slash_the_old_way_means_the_root_only() -> None:
    assert Pattern("*.py", shell_like=True).matches("a.py")
    assert not Pattern("*.py", shell_like=True).matches("deep/a.py")


@pytest.mark.parametrize(("pattern", "code"), [("../*", "invalid_pattern"), ("{a,b}" * 12, "pattern_too_broad")])
def test_a_pattern_that_leads_out_or_explodes_is_refused(pattern: str, code: str) -> None:
    with pytest.raises(PatternRefused, match=code):
        Pattern(pattern)


@pytest.mark.parametrize(
    ("data", "old", "new", "everywhere", "expected"),
    [
        (b"a b a", "b", "c", False, (b"a c a", 1, "")),
        (b"a b a", "a", "c", False, (b"", 2, "multiple_occurrences")),
        (b"a b a", "a", "c", True, (b"c b c", 2, "")),
        (b"a b a", "x", "c", False, (b"", 0, "string_not_found")),
        (b"a\r\nb\r\n", "a\nb", "x\ny", False, (b"x\r\ny\r\n", 1, "")),
        (b"a\nb\n", "a\r\nb", "x\r\ny", False, (b"x\ny\n", 1, "")),
        (b"\xff\xfe", "a", "b", False, (b"", 0, "not_a_text_file")),
    ],
)
def test_a_replacement_keeps_the_line_ends_of_the_file(
    data: bytes, old: str, new: str, everywhere: bool, expected: tuple[bytes, int, str]
) -> None:
    assert replace_text(data, old, new, everywhere) == expected


def test_a_page_has_a_limit_in_bytes_and_says_so() -> None:
    text, lines = _fit_page(["é" * 1000] * 1000)
    assert len(text.encode()) <= PAGE_BYTES
    assert "truncated due to size limits" in text
    assert 0 < lines < 1000
    assert _fit_page(["x" * PAGE_BYTES])[1] == 1
    assert _fit_page(["a", "b"]) == ("a\nb", 2)
