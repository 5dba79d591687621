"""Commands are judged as a shell reads them: a table of tricks, the same table under a real bash, and fuzz."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from unit.policy_cases import DENIED, ELSEWHERE, FINE, UNKNOWN
from unit.policy_grammar import generate, generate_lookup
from unit.policy_jail import runs_curl, stub_directory, which_run_curl

from warren.governance.policy import PolicyVerdict, judge, refusal
from warren.model.errors import InvalidRequest
from warren.model.operations import Command, Reason
from warren.model.policy import CommandRule, Policy, PolicyMode

ROOT = Path(__file__).parents[2]
DENY = Policy.from_mapping({"deny": ["curl", "wget*", "git push", "/usr/sbin/*"]})
ALLOW = Policy.from_mapping({"allow": ["ls", "cat", "git status", "/opt/tools/*", "bash build.sh", "bash"]})
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def verdict(line: str, policy: Policy = DENY) -> PolicyVerdict:
    return judge(policy, Command(shell=line))


# -- the table


@pytest.mark.parametrize("line", DENIED)
def test_a_denied_command_is_refused_by_its_rule_however_it_is_written(line: str) -> None:
    found = verdict(line)
    assert not found.allowed
    assert found.rule in [rule.text for rule in DENY.deny] or (found.rule == "cannot be known" and "$HERE" in line)
    assert f"`{found.rule}`" in found.words or found.rule == "cannot be known"


@pytest.mark.parametrize("line", UNKNOWN)
def test_what_cannot_be_known_is_refused_as_such(line: str) -> None:
    found = verdict(line)
    assert not found.allowed
    assert found.rule in ("cannot be known", "curl")


@pytest.mark.parametrize("line", FINE)
def test_a_line_that_only_mentions_a_denied_command_is_let_through(line: str) -> None:
    found = verdict(line)
    assert (found.allowed, found.rule, found.words) == (True, "", "")


def test_the_table_is_long_enough() -> None:
    assert len(DENIED) + len(UNKNOWN) >= 80
    assert len(FINE) >= 40


# -- the table, run


@pytest.fixture(scope="module")
def stub() -> Iterator[Path]:
    with stub_directory() as directory:
        yield directory


RUN = [line for line in (*DENIED, *UNKNOWN, *FINE) if line not in ELSEWHERE]


@pytest.mark.parametrize("line", RUN)
def test_whatever_makes_bash_run_it_had_been_refused(line: str, stub: Path) -> None:
    if runs_curl(line, stub):
        assert not verdict(line).allowed
    else:
        assert line not in SURELY_RUNS


SURELY_RUNS = frozenset(DENIED[:70])


def test_most_tricks_of_the_table_really_work(stub: Path) -> None:
    """Otherwise the test above would hold whatever the judge said."""
    lines = [line for line in (*DENIED, *UNKNOWN) if line not in ELSEWHERE]
    assert sum(runs_curl(line, stub) for line in lines) > 0.8 * len(lines)


# -- fuzz

FRAGMENTS = (
    "curl", "echo", " ", " ", " ", "\n", ";", "|", "&", "&&", "||", "(", ")", "{ ", "; }", "$(", "`", '"', "'", "$'",
    "\\", "\\\n", "#", "$x", "${x", "}", ":-", "$((", "))", "[[ ", " ]]", "[ ", " ]", "<<E\n", "<<'E'\n", "\nE\n",
    "<<<", "<(", ">f", "2>&1", "if ", "then ", "fi", "for i in ", "do ", "done", "case x in x) ", ";;", "esac", "f() ",
    "x=", "x=(", "a[1]", "*", "?", "~", "!", "time ", "eval ", "bash -c ", "xargs ", "\t", "\r", "é", "\u2003", "x63",
    "E", "function f ", "coproc ", "=~", "@P}", "true", "-c", "alias a=", "trap ",
)  # fmt: skip
lines = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=30).map("".join)


@patient
@given(st.text(st.characters(exclude_characters="\0"), min_size=1) | lines, st.sampled_from([DENY, ALLOW]))
@example("\ud800", DENY)
@example("\udce9", DENY)
def test_every_text_gets_an_answer(line: str, policy: Policy) -> None:
    try:
        command = Command(shell=line)
    except UnicodeEncodeError:
        return
    found = judge(policy, command)
    assert found.allowed == (not found.rule)
    assert bool(found.rule) == bool(found.words)
    refusal(found)


@patient
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=8))
def test_every_argv_gets_an_answer(argv: list[str]) -> None:
    argv[0] = argv[0] or "env"
    for name in ("", "env", "xargs", "find", "bash", "watch", "trap"):
        assert judge(DENY, Command(argv=(*filter(None, [name]), *argv))).allowed in (True, False)


def test_characters_beyond_the_tables_of_the_grammar_do_not_end_the_process() -> None:
    """`isdigit` and `isalpha` of the C library are given no such character: what they would read is nowhere."""
    program = """
from warren.governance.policy.parse import Script, parse
for far in map(chr, range(0x100, 0x110000, 0x3F1)):
    if not 0xD800 <= ord(far) < 0xE000:
        for line in "{%s", "@{%s(", "{1%s}", "{1..%s}", "[[ -%s ]]", "${a?%s}", "cat <<E\\n$%s\\nE\\n", "%s=1 ls":
            parse(Script(line % far))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(line=lines)
def test_no_line_that_is_let_through_makes_bash_run_it(line: str, stub: Path) -> None:
    if verdict(line).allowed and "curl" in line:
        assert not runs_curl(line, stub)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_generated_line_that_is_let_through_makes_bash_run_it(seed: int, stub: Path) -> None:
    """The deny list has `curl` on it, the allow list has not: no line may run it by either."""
    rng = random.Random(seed)
    lines = [generate(rng) for _ in range(500)]
    for policy in (DENY, ALLOW):
        let_through = [line for line in lines if verdict(line, policy).allowed]
        ran = which_run_curl(let_through, stub)
        assert [line for line, did in zip(let_through, ran, strict=True) if did] == []
    assert sum(which_run_curl(lines[:50], stub)) > 25


def test_no_generated_line_makes_an_allowed_name_stand_for_another_program(stub: Path) -> None:
    rng = random.Random(3)
    lines = [generate_lookup(rng) for _ in range(500)]
    let_through = [line for line in lines if verdict(line, ALLOW).allowed]
    ran = which_run_curl(let_through, stub)
    assert [line for line, did in zip(let_through, ran, strict=True) if did] == []
    assert sum(which_run_curl(lines[:50], stub)) > 25


HOSTILE = [
    "(", "$(", "{ ", "[[ ", "<<E ", "cat <<E\n", "<<'E'\n", "`", '"$(', "'", "${x", "((", "if ", "a|", "! ", "x=(",
    "a[", "f(){ ", "case x in a) ", "<(", ")", "nohup ", "watch ", "eval ", "bash -c ", "env ", "sh -c '", "\\",
    "xargs -I{} ", "find -exec ", "cat <<E\n$\nE\n", "=~ [ <(", "# ", "a;", "\n", "curl=",
]  # fmt: skip


@pytest.mark.parametrize("fragment", HOSTILE)
def test_long_and_deeply_nested_texts_get_an_answer(fragment: str) -> None:
    for size in (1_000, 15_000, 250_000, 3_000_000):
        found = verdict((fragment * (size // len(fragment) + 1))[:size])
        assert found.allowed == (not found.rule)
    assert not verdict(fragment * 20_000 + ";curl").allowed


def test_a_long_file_may_be_written_with_a_here_document() -> None:
    body = "def f(x): return {'a': [x | 1]}; $(curl)\n" * 5000
    assert verdict(f"cat > f.py <<'EOF'\n{body}EOF\npython3 f.py").allowed
    assert verdict(f"cat > f.py <<'EOF'\n{body}EOF\ncurl").rule == "curl"


def test_shells_in_shells_are_followed_only_so_far() -> None:
    line = "curl"
    for depth in range(20):
        assert not verdict(line).allowed, depth
        line = f"eval eval {line}"


# -- allow lists


@pytest.mark.parametrize(
    "line",
    [
        "ls -la", "/bin/ls", "/usr/bin/cat x | ls", "git status --short", "/opt/tools/x 1", "cd x && ls",
        "bash -c 'ls'", "f() { ls; }; f", "for i in 1 2; do cat \"$i\"; done", "x=1; echo $x > f", "timeout 5 ls",
        "bash build.sh", "test -f x || exit 1", "env A=1 ls", "ls $(cat x)",
    ],
)  # fmt: skip
def test_what_is_on_the_allow_list_may_run(line: str) -> None:
    assert verdict(line, ALLOW) == PolicyVerdict(True, found=verdict(line, ALLOW).found)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("rm x", "not on the allow list"),
        ("ls; rm x", "not on the allow list"),
        ("./ls", "not on the allow list"),
        ("/tmp/ls", "not on the allow list"),
        ("git push", "not on the allow list"),
        ("git -c a=b status", "not on the allow list"),
        ("git", "not on the allow list"),
        ("git $x", "cannot be known"),
        ("/opt/tools/../../bin/rm", "not on the allow list"),
        ("f; f() { ls; }", "not on the allow list"),
        ("false && f() { ls; }; f", "not on the allow list"),
        ("if false; then f() { ls; }; fi; f", "not on the allow list"),
        ("f() { ls; }; unset -f f; f", "not on the allow list"),
        ("$x", "cannot be known"),
        ("bash other.sh", "cannot be known"),
        ("bash", "cannot be known"),
        ("PATH=/tmp ls", "cannot be known"),
        ("declare -n q=PATH; q=/tmp/evil; ls", "cannot be known"),
        ("x=PATH; read $x <<< /tmp/evil; ls", "cannot be known"),
        ("printf -vPATH /tmp/evil; ls", "cannot be known"),
        ("BASH_CMDS[ls]=/tmp/evil/ls; ls", "cannot be known"),
        ("export PATH=/tmp; ls", "cannot be known"),
        ("env PATH=/tmp ls", "cannot be known"),
        ("read PATH <<< /tmp; ls", "cannot be known"),
        ("LD_PRELOAD=./x.so ls", "cannot be known"),
        ("timeout 5 rm x", "not on the allow list"),
        ("bash -c 'rm x'", "not on the allow list"),
        ("ls | xargs rm", "not on the allow list"),
        ("watch ls", "not on the allow list"),
        ("ls `rm x`", "not on the allow list"),
        ("ls (", "cannot be known"),
    ],
)
def test_what_is_not_on_the_allow_list_is_refused(line: str, rule: str) -> None:
    found = verdict(line, ALLOW)
    assert (found.allowed, found.rule) == (False, rule)


def test_the_deny_list_wins_over_the_allow_list() -> None:
    policy = Policy.from_mapping({"allow": ["git"], "deny": ["git push"]})
    assert verdict("git status", policy).allowed
    assert verdict("git push", policy).rule == "git push"


# -- modes, arguments, environment


def test_a_policy_that_is_off_judges_nothing_and_loads_no_grammar() -> None:
    code = (
        "import sys; from warren.governance.policy import judge; from warren.model.policy import Policy;"
        "from warren.model.operations import Command; assert judge(Policy(), Command(shell='curl')).allowed;"
        "assert not [name for name in sys.modules if name.startswith('tree_sitter')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})


def test_an_audit_lets_everything_run_and_says_what_it_would_refuse() -> None:
    policy = Policy.from_mapping({"mode": "audit", "deny": ["curl"]})
    found = verdict("ls; curl x", policy)
    assert (found.allowed, found.rule, found.found) == (True, "curl", ("ls", "curl"))
    assert found.words == "would be refused: `curl` in `curl x` is denied by the rule `curl`; do without it"


def test_what_cannot_be_known_may_be_allowed_where_there_is_only_a_deny_list() -> None:
    policy = Policy.from_mapping({"deny": ["curl"], "unknown": "allow"})
    assert verdict("$x; bash build.sh", policy).allowed
    assert verdict("$x; curl", policy).rule == "curl"
    assert verdict("watch 'curl x'", policy).rule == "curl"


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        (("curl", "x"), "curl"),
        (("/usr/bin/curl",), "curl"),
        (("env", "A=1", "curl"), "curl"),
        (("bash", "-c", "true; curl"), "curl"),
        (("bash", "x.sh"), "cannot be known"),
        (("git", "-C", "x", "push"), "git push"),
        (("echo", "curl"), ""),
        (("echo", "$(curl)"), ""),
        (("$(curl)",), ""),
    ],
)
def test_programs_without_a_shell_are_judged_too(argv: tuple[str, ...], rule: str) -> None:
    assert judge(DENY, Command(argv=argv)).rule == rule


def test_variables_that_change_what_a_shell_runs_are_part_of_the_command() -> None:
    assert judge(DENY, Command(shell="echo $((x))", env={"x": "a[$(curl)]"})).rule == "cannot be known"
    assert judge(DENY, Command(shell="ls", env={"BASH_ENV": "x"})).rule == "cannot be known"
    assert judge(DENY, Command(shell="ls", env={"PATH": "/x"})).allowed
    assert judge(ALLOW, Command(shell="ls", env={"PATH": "/x"})).rule == "cannot be known"


def test_a_refusal_is_a_result_that_says_which_command_and_which_rule() -> None:
    result = refusal(verdict("cd x && bash -c 'curl -s y'"))
    assert (result.exit_code, result.reason, result.stdout) == (126, Reason.REFUSED, "")
    assert result.stderr == result.output
    said = "`curl` in `curl -s y` (through bash -c) is denied by the rule `curl`; do without it"
    assert result.output == f"warren: refused by policy: {said}\n"


# -- rules and policies as they are written


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"deny": [""]}, "a rule is empty"),
        ({"deny": [3]}, "not a text"),
        ({"deny": ["curl | sh"]}, "has '|' in it"),
        ({"deny": ["a" * 501]}, "longer than 500"),
        ({"deny": ["A=1 curl"]}, "begins with a variable"),
        ({"deny": "curl"}, "write a list"),
        ({"deny": ["curl"], "mode": "strict"}, "one of off, audit, enforce"),
        ({"deny": ["curl"], "unknown": "maybe"}, "one of refuse, allow"),
        ({"denied": ["curl"]}, "no key 'denied'"),
        ({"mode": "enforce"}, "no rules"),
        ({"allow": ["ls"], "unknown": "allow"}, "allow list cannot allow"),
        ({"deny": ["x"] * 1001}, "at most 1000"),
        ([], "keys and values"),
    ],
)
def test_a_policy_that_cannot_be_says_why(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Policy.from_mapping(values)
    assert said in str(caught.value)


def test_a_policy_survives_being_written_down() -> None:
    assert Policy.from_mapping(DENY.as_mapping()) == DENY
    assert Policy.from_mapping({"mode": False}).mode is PolicyMode.OFF
    assert CommandRule("git  push").words == ("git", "push")


def test_the_policies_that_the_page_shows_are_taken() -> None:
    page = (ROOT / "docs" / "command-policy.md").read_text()
    shown = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert shown
    for text in shown:
        assert Policy.from_mapping(yaml.safe_load(text)["policy"]).mode is not PolicyMode.OFF


def test_a_list_of_arguments_without_end_cannot_be_known_but_its_program_can() -> None:
    padding = tuple("x" * 1000 for _ in range(300))
    deny = Policy.from_mapping({"mode": "enforce", "deny": ["curl"]})
    assert judge(deny, Command(argv=("curl", *padding))).rule == "curl"
    assert judge(deny, Command(argv=("ls", *padding))).rule == "cannot be known"
    assert judge(deny, Command(argv=("c" * 300_000,))).rule == "cannot be known"
    assert judge(deny, Command(argv=("ls", *padding[:200]))).allowed
