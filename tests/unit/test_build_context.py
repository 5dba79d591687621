"""What a build copies from its directory: nothing outside of it, and nothing that .dockerignore leaves out."""

import os
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.images.building.context import Digest, FileTree, IgnoreRules
from warren.model.errors import InvalidRequest
from warren.sandboxes.agent.tar_stream import TarMember


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "context"
    for name in ("app/main.py", "app/test/a.log", "app/b.log", "README.md", "a.txt", "b.txt", ".git/config"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    return path


def names(tree: FileTree, *patterns: str) -> list[str]:
    return [
        f"{source.path}:{part.path}"
        for source in tree.find(patterns)
        for part in tree.content(source)
        if isinstance(part, TarMember)
    ]


def digest(context: Path, *patterns: str) -> str:
    digest = Digest()
    with FileTree(context) as tree:
        for source in tree.find(patterns):
            for part in tree.content(source):
                digest.add(part)
    return digest.text()


def test_patterns_name_files_and_directories(context: Path) -> None:
    with FileTree(context) as tree:
        assert names(tree, "*.txt") == ["a.txt:a.txt", "b.txt:b.txt"]
        assert names(tree, "app/*.log", "./a.txt") == ["app/b.log:b.log", "a.txt:a.txt"]
        assert names(tree, "/app") == ["app:b.log", "app:main.py", "app:test", "app:test/a.log"]
        assert [source.path for source in tree.find(["*/*.[lp]*"])] == ["app/b.log", "app/main.py"]
        with pytest.raises(InvalidRequest, match=r"has no 'none\*'"):
            tree.find(["none*"])


def test_no_path_and_no_link_leads_out(context: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    (context / "up").symlink_to("../outside")
    (context / "absolute").symlink_to(tmp_path / "outside")
    (context / "folder").symlink_to("..")
    (context / "inner").symlink_to("/a.txt")
    with FileTree(context) as tree:
        for pattern in ("../outside", "app/../../outside"):
            with pytest.raises(InvalidRequest, match="leads out"):
                tree.find([pattern])
        for pattern in ("up", "absolute", "folder/outside"):
            with pytest.raises(InvalidRequest, match="has no"):
                tree.find([pattern])
        (source,) = tree.find(["inner"])
        assert b"".join(part for part in tree.content(source) if isinstance(part, bytes)) == b"a.txt"
        links = [part for part in tree.content(tree.find(["."])[0]) if isinstance(part, TarMember) and part.target]
        assert {link.path for link in links} == {"up", "absolute", "folder", "inner"}


def test_a_pipe_is_left_out(context: Path) -> None:
    os.mkfifo(context / "app/pipe")
    with FileTree(context) as tree:
        assert "app:pipe" not in names(tree, "app")


def test_dockerignore_leaves_out(context: Path) -> None:
    (context / ".dockerignore").write_text("# comment\n.git\n**/*.log\n!app/test/a.log\n/README.*\n")
    with FileTree(context) as tree:
        assert names(tree, ".") == [
            ":.dockerignore",
            ":a.txt",
            ":app",
            ":app/main.py",
            ":app/test",
            ":app/test/a.log",
            ":b.txt",
        ]
        with pytest.raises(InvalidRequest, match="has no"):
            tree.find(["README.md"])


@pytest.mark.parametrize(
    ("pattern", "path", "hides"),
    [
        ("node_modules", "node_modules/x/y", True),
        ("node_modules", "app/node_modules", False),
        ("**/node_modules", "app/node_modules/x", True),
        ("*", "anything", True),
        ("a/**", "a/b/c", True),
        ("a/**/z", "a/z", True),
        ("?.txt", "ab.txt", False),
        ("[a-c].txt", "b.txt", True),
        ("[!a-c].txt", "b.txt", False),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
    ],
)
def test_patterns_of_dockerignore(pattern: str, path: str, hides: bool) -> None:
    assert IgnoreRules([pattern]).hides(path) is hides


def test_the_digest_knows_content_names_and_modes_but_no_times(context: Path) -> None:
    before = digest(context, "app")
    os.utime(context / "app/main.py", (1, 1))
    assert digest(context, "app") == before
    seen = {before}
    (context / "app/main.py").chmod(0o755)
    seen.add(digest(context, "app"))
    (context / "app/main.py").write_text("changed")
    seen.add(digest(context, "app"))
    (context / "app/main.py").rename(context / "app/other.py")
    seen.add(digest(context, "app"))
    assert len(seen) == 4


def matches(pattern: list[str], path: list[str]) -> bool:
    """What a pattern means, by its definition: one part after the other."""
    if not pattern:
        return not path
    head, *rest = pattern
    if head == "**":
        return any(matches(rest, path[count:]) for count in range(len(path) + 1)) if rest else bool(path)
    return bool(path) and fnmatchcase(path[0], head) and matches(rest, path[1:])


@given(
    st.lists(st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=4).filter(lambda part: part != "**"))),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_patterns_mean_what_their_parts_mean(pattern: list[str], path: list[str]) -> None:
    above = [path[:count] for count in range(1, len(path) + 1)]
    expected = any(matches(pattern, each) for each in above) if pattern else False
    assert IgnoreRules(["/".join(pattern)]).hides("/".join(path)) is expected


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 100 + "b", "a" * 255),
        ("**/a/" * 50 + "b", "a/" * 150 + "c"),
        ("**/*a*a*a*/" * 20 + "b", "aaaaaaaa/" * 150 + "c"),
    ],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    began = time.monotonic()
    assert not IgnoreRules([pattern]).hides(path)
    assert time.monotonic() - began < 2
