"""What must go from a text that is kept, and what must stay."""

import json
import shlex
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from warren.governance.audit.entries import MAX_LINE, encode_entry, encode_redacted, parse_entry, redact_entry
from warren.governance.audit.redaction import GONE, forms_of, redacted, without_shapes
from warren.model.audit import AuditEntry, CommandText

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\nAAAA\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"

GOES = [
    ("curl -H 'Authorization: Bearer hunter2' https://h/x", "curl -H 'Authorization: [redacted]' https://h/x"),
    ('curl -H "authorization: Basic aHVudGVyMg==" h', 'curl -H "authorization: [redacted]" h'),
    ("curl -H \"Authorization: Digest a='b', response=hunter2\" h", 'curl -H "Authorization: [redacted]" h'),
    ("curl -H Authorization:hunter2 h", "curl -H Authorization:[redacted] h"),
    ("Authorization: Bearer hunter2\nAccept: */*", "Authorization: Bearer [redacted]\nAccept: */*"),
    ("curl -H 'X-Api-Key: hunter2' h", "curl -H 'X-Api-Key: [redacted]' h"),
    ("curl -H 'Cookie: sid=hunter2; a=b' h", "curl -H 'Cookie: [redacted]' h"),
    ("curl -H 'PRIVATE-TOKEN: hunter2' h", "curl -H 'PRIVATE-TOKEN: [redacted]' h"),
    ("send bearer abcdefgh1234", "send bearer [redacted]"),
    ("curl -u user:hunter2 h", "curl -u user:[redacted] h"),
    ("curl -uuser:hunter2 h", "curl -uuser:[redacted] h"),
    ("curl --user 'user:hunter2' h", "curl --user 'user:[redacted]' h"),
    ("curl --proxy-user=user:hunter2 h", "curl --proxy-user=user:[redacted] h"),
    ("psql --password hunter2 -h db", "psql --password [redacted] -h db"),
    ("psql --password=hunter2 -h db", "psql --password=[redacted] -h db"),
    ("login --password 'two words' next", "login --password [redacted] next"),
    ('login --password "it\'s \\"two\\" words" next', "login --password [redacted] next"),
    ('login --password "never closed', "login --password [redacted]"),
    ("login --password $(cat hunter2) next", "login --password [redacted] next"),
    ("tool --token=hunter2", "tool --token=[redacted]"),
    ("tool --api-key hunter2", "tool --api-key [redacted]"),
    ("tool --client-secret hunter2 x", "tool --client-secret [redacted] x"),
    ("tool -password hunter2", "tool -password [redacted]"),
    ("PASSWORD=hunter2 ./run", "PASSWORD=[redacted] ./run"),
    ("export PGPASSWORD='hunter 2'; psql", "export PGPASSWORD=[redacted]; psql"),
    ("MYSQL_PWD=hunter2 mysql", "MYSQL_PWD=[redacted] mysql"),
    ("docker run -e APP_SECRET=hunter2 img", "docker run -e APP_SECRET=[redacted] img"),
    ("GITHUB_TOKEN=hunter2 gh pr list", "GITHUB_TOKEN=[redacted] gh pr list"),
    ("export STRIPE_KEY=hunter2 && run", "export STRIPE_KEY=[redacted] && run"),
    ("SECRET_KEY_BASE=hunter2 rails s", "SECRET_KEY_BASE=[redacted] rails s"),
    ("PASSWORD=${X:-hunter2} run", "PASSWORD=[redacted] run"),
    ('bash -c "export TOKEN=hunter2; run"', 'bash -c "export TOKEN=[redacted]; run"'),
    ('bash -c "export TOKEN=\\"hunter 2\\"; run"', 'bash -c "export TOKEN=[redacted]; run"'),
    ("curl 'https://h/?token=hunter2&page=2'", "curl 'https://h/?token=[redacted]&page=2'"),
    ('curl -d "password=hunter2" https://h', 'curl -d "password=[redacted]" https://h'),
    ("client(api_key='hunter2', retries=3)", "client(api_key=[redacted], retries=3)"),
    ('password = "hunter2"  # mine', "password = [redacted]  # mine"),
    ('if password == "hunter2":', "if password == [redacted]:"),
    ("os.environ['API_TOKEN'] = 'hunter2'", "os.environ['API_TOKEN'] = [redacted]"),
    ('{"user": "me", "password": "hunter2"}', '{"user": "me", "password": [redacted]}'),
    ('curl -d "{\\"password\\":\\"hunter2\\"}" h', 'curl -d "{\\"password\\":[redacted]}" h'),
    ("password: hunter2\nuser: me", "password: [redacted]\nuser: me"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG+b", "aws_secret_access_key = [redacted]"),
    ("git clone https://me:hunter2@host/r.git", "git clone https://me:[redacted]@host/r.git"),
    ("psql postgres://u:p@ss:w0rd@db:5432/x", "psql postgres://u:[redacted]@db:5432/x"),
    ("redis-cli -u redis://:hunter2@h:6379", "redis-cli -u redis://:[redacted]@h:6379"),
    ("git clone https://0123456789abcdef0123@host/r", "git clone https://[redacted]@host/r"),
    ("aws configure set x AKIAIOSFODNN7EXAMPLE", "aws configure set x [redacted]"),
    ("echo ghp_0123456789abcdefghijABCDEFGHIJ012345", "echo [redacted]"),
    ("echo github_pat_11ABCDEFG0_abcdefghijklmnop", "echo [redacted]"),
    ("echo glpat-abcdefghij0123456789", "echo [redacted]"),
    ("echo xoxb-123456789012-abcdefGHIJ", "echo [redacted]"),
    ("echo sk-proj-abcDEF0123456789xyz", "echo [redacted]"),
    ("echo 'sk_live_0123456789abcdef'", "echo '[redacted]'"),
    (f"echo {JWT} | cut -c1", "echo [redacted] | cut -c1"),
    (f"cat > k <<X\n{PEM}\nX", "cat > k <<X\n[redacted]\nX"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC", "[redacted]"),
    ("warren ps --server h wk_0123456789abcdef", "warren ps --server h [redacted]"),
    (f"curl -H x:wet_{'0a' * 16}_{'1b' * 20} h", "curl -H x:[redacted] h"),
    ("mysql -u root -phunter2 db", "mysql -u root -p[redacted] db"),
    ("sshpass -p hunter2 ssh h", "sshpass -p [redacted] ssh h"),
    ("docker login -u me -p hunter2 reg", "docker login -u me -p [redacted] reg"),
    ("redis-cli -h h -a hunter2 ping", "redis-cli -h h -a [redacted] ping"),
    ("openssl rsa -passin pass:hunter2 -in k", "openssl rsa -passin pass:[redacted] -in k"),
    ("openssl enc -k x -pass pass:hunter2", "openssl enc -k x -pass [redacted]"),
]

STAYS = [
    "ls -la /workspace",
    "python -u train.py --max-tokens 4096",
    "MAX_TOKENS=4096 python run.py",
    "echo $PASSWORD",
    'psql --password "$DB_PASSWORD" -h db',
    "TOKEN=$GITHUB_TOKEN gh pr list",
    "TOKEN=${GITHUB_TOKEN} gh pr list",
    "docker run -u 1000:1000 img",
    "docker run --user 1000:1000 img",
    "sudo -u postgres psql",
    "git push -u origin main",
    "cat /run/secrets/db_password",
    "tool --password-file /run/pw --token-ttl 5",
    "tool --no-password next",
    "curl https://host:8080/path@2x.png",
    "npm view https://registry:4873/@scope/pkg",
    "git clone git@github.com:me/repo.git",
    "git clone ssh://git@github.com/me/repo",
    "ssh -p 2222 user@host",
    "mkdir -p a/b && docker run -p 80:80 img",
    "mysql -u root -p db",
    "pip install sk-learn-contrib-extras scikit-learn",
    "make task-management-0123456789-report",
    "grep -rn token src",
    "grep 'password' file | head",
    "the bearer of this certificate",
    "def login(user: str, password: str) -> Token:",
    "token = next(tokens)",
    "monkey=banana keyboard=qwerty",
    "cd $OLDPWD && PWD=/tmp pwd",
    "sha256sum 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "echo AKIA and eyJ and wk_ and ghp_",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "pytest -k 'secret or token' -x",
    "x = {'key': 'value'}",
    "sort -u names.txt",
    "compass: north, bypass: south",
    "pass",
]


@pytest.mark.parametrize(("text", "clean"), GOES, ids=[text for text, _ in GOES])
def test_a_secret_is_taken_out_and_the_rest_stays(text: str, clean: str) -> None:
    assert without_shapes(text) == clean


@pytest.mark.parametrize("text", STAYS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_shapes(text) == text


@pytest.mark.parametrize("text", [clean for _, clean in GOES])
def test_taking_out_twice_hides_nothing_more(text: str) -> None:
    assert without_shapes(text) == text


_texts = st.text(max_size=40)
_secrets = st.text(min_size=6, max_size=30).filter(lambda one: one.strip() == one and one not in GONE)
_plain = st.text(string.ascii_letters + string.digits, min_size=6, max_size=20)


def _survives(secret: str, entry: AuditEntry) -> bool:
    def within(value: object) -> bool:
        if isinstance(value, dict):
            return any(within(name) or within(one) for name, one in value.items())
        if isinstance(value, list):
            return any(map(within, value))
        return isinstance(value, str) and secret in value

    return within(dict(entry.detail))


@given(_secrets, _texts, _texts, st.integers(1, 3))
def test_a_value_that_is_known_never_survives(secret: str, before: str, after: str, times: int) -> None:
    assume(secret not in GONE + before + after)
    text = before + secret * times + after
    detail = {
        "command": text,
        "path": text,
        "reason": {"deep": [text, {"deeper": text}]},
        "argv": [before, secret, after],
    }
    kept_entry = redact_entry(AuditEntry(1.0, "run_command", detail=detail), [secret], CommandText.REDACTED)
    assume(secret not in "command path reason deep deeper argv")
    assert not _survives(secret, kept_entry)
    assert parse_entry(encode_entry(kept_entry)) == kept_entry


@given(_secrets, st.lists(_texts, max_size=3), st.lists(_texts, max_size=3))
def test_nor_as_an_argument_of_a_command(secret: str, before: list[str], after: list[str]) -> None:
    entry = AuditEntry(1.0, "run_command", detail={"command": [*before, secret, *after]})
    assume(secret not in shlex.join([*before, GONE, *after]))
    assert not _survives(secret, redact_entry(entry, [secret], CommandText.REDACTED))


@given(_plain, st.sampled_from(["--password {}", "API_KEY={}", "-u me:{}", "https://me:{}@host/", "token='{}'"]))
def test_nor_does_one_that_is_known_only_by_what_stands_before_it(secret: str, where: str) -> None:
    assume(secret not in where.format(GONE))
    assert secret not in redacted(f"run {where.format(secret)} now")


@given(_plain, st.integers(0, 4200))
def test_nor_where_a_long_text_is_cut(secret: str, at: int) -> None:
    token = f"ghp_{secret}{'0' * 30}"
    text = "x" * at + f" --password {secret} {token} " + "y " * 4096
    notice = f"… [cut: it had {len(text)} characters]"
    assume(secret not in "x" * at + f" --password {GONE}{notice}")
    clean = redacted(text, forms_of(["unrelated"]))
    assert "ghp_" not in clean
    assert secret not in clean
    assert clean.endswith(notice)


@pytest.mark.parametrize("kept_of_token", [4, 10, 20, 39])
def test_a_cut_never_leaves_half_a_key(kept_of_token: int) -> None:
    """A block is taken out, so that what was at the edge of what is looked at (4096) moves to the front."""
    block = f"-----BEGIN PRIVATE KEY-----{'A' * 3000}-----END PRIVATE KEY----- "
    token = f"ghp_{'a1' * 18}"
    text = f"{block}{'p' * (4096 - kept_of_token - len(block) - 1)} {token} and more"
    assert text[4096 - kept_of_token :].startswith(token)
    assert redacted(text, most=2048).startswith("[redacted] ppp")
    assert "ghp_" not in redacted(text, most=2048)


@pytest.mark.parametrize("form", ["it%27s%20me%26", "it's+me&".replace("'", "%27").replace("&", "%26"), "aXQncyBtZSY="])
def test_a_value_goes_in_its_encodings_too(form: str) -> None:
    assert redacted(f"curl h/{form}/x", forms_of(["it's me&"])) == "curl h/[redacted]/x"


def test_a_value_goes_with_or_without_the_line_end_it_was_read_with() -> None:
    assert redacted("echo hunter22", forms_of(["hunter22\n"])) == "echo [redacted]"


def test_the_longer_of_two_values_goes_first() -> None:
    assert redacted("a hunter22-extra b", forms_of(["hunter22", "hunter22-extra"])) == "a [redacted] b"


def test_short_values_stay() -> None:
    assert redacted("python 3.11", forms_of(["3.11", "pytho"])) == "python 3.11"


def test_variables_do_not_hide_who_did_what() -> None:
    entry = AuditEntry(1.0, "run_command", "acme-inc", "key_123", "10.0.0.1", "req_123", "ses_123", result="refused")
    hiding = ["run_command", "acme-inc", "key_123", "10.0.0.1", "req_123", "ses_123", "refused"]
    assert redact_entry(entry, hiding, CommandText.REDACTED) == entry


def test_what_the_caller_chose_freely_is_searched_for_secrets() -> None:
    entry = AuditEntry(1.0, "get_session", request_id="wk_0123456789abc", session_id="ghp_0123456789abcdefghij0")
    clean = redact_entry(entry, [], CommandText.REDACTED)
    assert (clean.request_id, clean.session_id) == (GONE, GONE)


def test_a_detail_with_the_name_of_a_secret_goes() -> None:
    entry = AuditEntry(1.0, "x", detail={"password": "a", "env": {"API_TOKEN": "b", "HOME": "/root"}, "exit_code": 0})
    clean = redact_entry(entry, [], CommandText.REDACTED)
    assert clean.detail == {"password": GONE, "env": {"API_TOKEN": GONE, "HOME": "/root"}, "exit_code": 0}


def test_commands_are_left_out_where_that_is_asked_for() -> None:
    entry = AuditEntry(1.0, "run_command", detail={"command": "ls", "exit_code": 0})
    assert redact_entry(entry, [], CommandText.NONE).detail == {"exit_code": 0}


def test_arguments_are_kept_as_one_text() -> None:
    entry = AuditEntry(1.0, "run_command", detail={"command": ["login", "--password", "two words", "it's"]})
    assert redact_entry(entry, [], CommandText.REDACTED).detail["command"] == "login --password [redacted] 'it'\"'\"'s'"


@pytest.mark.parametrize(
    "detail",
    [
        {"big": ["x" * 3000] * 60},
        {"wide": {str(number): "x" * 100 for number in range(100_000)}},
        {f"{number}" * 500: number for number in range(1000)},
        {"command": "\x00" * 1_000_000},
        {"number": 10**5000, "nan": float("nan"), "inf": float("inf"), "bytes": b"x", "set": {1}},
    ],
    ids=["big", "wide", "names", "escapes", "odd"],
)
def test_a_line_is_bounded_whatever_is_in_it(detail: dict[str, object]) -> None:
    line = encode_redacted(AuditEntry(float("nan"), "x" * 10_000, detail=detail), [], CommandText.REDACTED)
    assert len(line) <= MAX_LINE
    assert json.loads(line)["at"] == 0


def test_a_nest_without_end_is_cut() -> None:
    nest: dict[str, object] = {}
    nest["nest"] = nest
    assert "dict" in json.dumps(redact_entry(AuditEntry(1.0, "x", detail=nest), [], CommandText.REDACTED).detail)


def test_no_line_has_characters_a_terminal_could_obey() -> None:
    every = "".join(map(chr, [*range(0x0, 0x20), *range(0x7F, 0xA0), 0x2028, 0x202E, 0xD800]))
    line = encode_redacted(AuditEntry(1.0, "x", detail={"command": every}), [], CommandText.REDACTED)
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert line.endswith(b"\n")
    entry = parse_entry(line)
    assert entry is not None
    assert entry.detail["command"] == every


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b'{"at":1,"action":"x"', b"[]", b"1", b"{}", b'{"at":"1","action":"x"}', b'{"at":1,"action":2}',
     b'{"at":1,"action":"x","detail":[]}', b"\xff\x00", b"[" * 100_000],
)  # fmt: skip
def test_a_line_that_is_no_deed_is_none(line: bytes) -> None:
    assert parse_entry(line) is None
