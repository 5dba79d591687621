"""Settings: where they come from, which source wins, what they refuse."""

import ast
import contextlib
import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren
from warren.config import settings as config
from warren.config.options import OPTIONS, Option
from warren.config.settings import Settings, read_settings
from warren.model.errors import InvalidRequest

PACKAGE = Path(warren.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def read(environ: dict[str, str] | None = None, *, uid: int = 0, **flags: object) -> Settings:
    """Without the file this machine may have."""
    return read_settings({"WARREN_CONFIG": "/dev/null", **(environ or {})}, uid=uid, flags=flags)


def refusal(environ: dict[str, str] | None = None, **flags: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_settings({"WARREN_CONFIG": "/dev/null", **(environ or {})}, flags=flags)
    return caught.value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "warren.toml"
    path.touch(mode=0o600)
    return path


@pytest.mark.parametrize(
    ("environ", "uid", "state_dir"),
    [
        ({}, 0, "/var/lib/warren"),
        ({"WARREN_STATE_DIR": "/x"}, 0, "/x"),
        ({"HOME": "/home/a"}, 1000, "/home/a/.local/state/warren"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 1000, "/s/warren"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "s"}, 1000, "/home/a/.local/state/warren"),
        ({"WARREN_STATE_DIR": "/x", "XDG_STATE_HOME": "/s"}, 1000, "/x"),
        ({"WARREN_STATE_DIR": ""}, 0, "/var/lib/warren"),
    ],
)
def test_the_state_directory(environ: dict[str, str], uid: int, state_dir: str) -> None:
    assert str(read(environ, uid=uid).state_dir) == state_dir


def test_a_relative_state_directory_is_made_absolute() -> None:
    assert read({"WARREN_STATE_DIR": "x"}).state_dir == Path.cwd() / "x"


def test_defaults() -> None:
    settings = read()
    assert (settings.providers, settings.runtime, settings.docker_url, settings.debug) == (("oci",), "", "", False)
    assert (settings.host, settings.port, settings.worker_id) == ("127.0.0.1", 8000, "local")
    assert (settings.pool_size, settings.pool_min, settings.pool_max) == (5, 2, 100)
    assert (settings.idle_timeout_s, settings.max_lifetime_s) == (1800, 3600)
    assert (settings.memory_mb, settings.cpus, settings.api_key) == (None, None, "")
    assert settings.bin_dir == Path(config.__file__).parents[1] / "bin"
    assert set(settings.sources.values()) == {"default"}
    assert settings.warnings == ()


def test_every_default_can_be_given_as_it_is_shown() -> None:
    settings = read()
    for name, option in OPTIONS.items():
        value = getattr(settings, option.attribute)
        if value not in ("", None, ()):
            text = option.show(value).removesuffix(" (automatic)")
            assert getattr(read({option.variable: text}), option.attribute) == value, name


def test_settings_and_table_have_the_same_names() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert names == [option.attribute for option in OPTIONS.values()] + ["sources", "warnings"]


def test_an_unknown_provider_is_refused_and_the_source_is_in_the_remedy() -> None:
    refused = refusal({"WARREN_PROVIDER": "vm"})
    assert refused.message == "there is no provider 'vm'"
    assert refused.remedy == "the environment variable WARREN_PROVIDER says so; there are: oci, docker, e2b, fake"


@pytest.mark.parametrize(
    ("text", "providers"),
    [("docker", ("docker",)), ("oci,docker", ("oci", "docker")), (" docker , oci,docker", ("docker", "oci"))],
)
def test_several_providers_may_be_named_and_the_first_is_the_default(text: str, providers: tuple[str, ...]) -> None:
    settings = read_settings({"WARREN_PROVIDER": text})
    assert settings.providers == providers
    assert OPTIONS["provider"].show(settings.providers) == ",".join(providers)


def test_later_sources_win_and_each_is_said(file: Path) -> None:
    file.write_text("port = 1111\npool_size = 6\nhost = '::1'\n")
    environ = {"PORT": "2222", "POOL_SIZE": "7"}
    settings = read_settings(environ, uid=0, flags={"port": "3333", "store": None}, config_file=file)
    assert (settings.port, settings.pool_size, settings.host, settings.store) == (3333, 7, "::1", "sqlite")
    sources = [settings.sources[name] for name in ("port", "pool_size", "host", "store")]
    assert sources == ["flag --port", "environment POOL_SIZE", f"file {file}", "default"]


ALIASES = [(option, alias) for option in OPTIONS.values() for alias in option.aliases]


@pytest.mark.parametrize(("option", "alias"), ALIASES, ids=[alias for _, alias in ALIASES])
def test_a_name_of_an_older_system_stands_below_ours(option: Option, alias: str) -> None:
    special = {"MEMORY_LIMIT": "1g", "CPU_QUOTA": "50000", "WORKERS": "one:5000"}
    special |= dict.fromkeys(("REDIS_HOST", "E2B_DOMAIN"), "one")
    special |= dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL"), "http://one")
    theirs = special.get(alias, "9")
    ours = special.get(alias, "8").replace("one", "two") if alias != "CPU_QUOTA" else "8"
    assert read({alias: theirs}).sources[option.name] == f"environment {alias}"
    assert read({alias: theirs, option.variable: ours}).sources[option.name] == f"environment {option.variable}"


def test_a_quota_of_docker_is_counted_in_cores() -> None:
    assert read({"CPU_QUOTA": "50000"}).cpus == 0.5
    assert read({"CPU_QUOTA": "50000", "WARREN_CPUS": "2"}).cpus == 2.0


def test_of_two_older_names_the_first_in_the_table_counts() -> None:
    settings = read({"MIN_POOL_SIZE": "3", "POOL_MIN": "4"})
    assert (settings.pool_min, settings.sources["pool_min"]) == (3, "environment MIN_POOL_SIZE")
    assert read({"WARREN_POOL_MIN": "1", "MIN_POOL_SIZE": "3"}).pool_min == 1


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_counts_as_not_given(empty: str) -> None:
    settings = read({"WARREN_PORT": empty, "PORT": "2222", "WARREN_DEBUG": empty})
    assert (settings.port, settings.sources["port"], settings.debug) == (2222, "environment PORT", False)


def test_an_empty_flag_takes_back_what_the_environment_says() -> None:
    settings = read({"CONTAINER_IMAGE": "mine"}, container_image="")
    assert (settings.container_image, settings.sources["container_image"]) == ("", "flag --container-image")
    assert "the flag --port is ''" in refusal(port="").message


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("512m", 512), ("1g", 1024), ("536870912", 512), ("512MiB", 512), ("512 MB", 512), ("65536K", 64), ("1T", 2**20)],
)
def test_amounts_of_memory(text: str, megabytes: int) -> None:
    assert read({"MEMORY_LIMIT": text}).memory_mb == megabytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("1h", 3600), ("2d", 172800), ("1.5m", 90), (" 7 ", 7)]
)
def test_times(text: str, seconds: float) -> None:
    assert read({"IDLE_TIMEOUT": text}).idle_timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [*((text, True) for text in ("1", "TRUE", "yes", "on")), *((text, False) for text in ("0", "false", "no", "Off"))],
)
def test_switches(text: str, value: bool) -> None:
    assert read({"WARREN_DEBUG": text}).debug is value


def test_allowed_hosts() -> None:
    settings = read({"WARREN_ALLOWED_HOSTS": "Box.example.com., 10.0.0.1,[::1],box.example.com"})
    assert settings.allowed_hosts == ("box.example.com", "10.0.0.1", "::1")
    for host, name in (
        ("box.example.com:8143", "box.example.com"),
        ("[::1]:80", "[::1]"),
        ("*.a.example:1", "*.a.example"),
    ):
        refused = refusal({"WARREN_ALLOWED_HOSTS": host})
        assert refused.message == f"the host {host!r} has a port"
        assert f"WARREN_ALLOWED_HOSTS says so; write {name}, for every port" in refused.remedy


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PORT": "abc"}, "the environment variable PORT is 'abc': a whole number from 1 to 65535 is expected"),
        ({"PORT": "0"}, "PORT is '0'"),
        ({"PORT": "65536"}, "PORT is '65536'"),
        ({"PORT": "8_000"}, "PORT is '8_000'"),
        ({"PORT": "٨٠"}, "PORT is"),
        ({"PORT": "tcp://10.0.0.1:80"}, "PORT is 'tcp://10.0.0.1:80'"),
        ({"WARREN_HOST": "a b"}, "WARREN_HOST is 'a b': a name or an address, without a port is expected"),
        ({"WARREN_HOST": "localhost:80"}, "WARREN_HOST is"),
        ({"WARREN_HOST": "1.2.3.400"}, "WARREN_HOST is"),
        ({"WORKER_ID": "a/b"}, "WORKER_ID is 'a/b'"),
        ({"WORKER_ID": "x" * 65}, "WORKER_ID is"),
        ({"WARREN_STORE": "redis"}, "WARREN_STORE is 'redis': one of sqlite, memory is expected"),
        ({"CONTAINER_IMAGE": "../x"}, "CONTAINER_IMAGE is '../x': the name of an image is expected"),
        ({"POOL_SIZE": "-1"}, "POOL_SIZE is '-1'"),
        ({"IDLE_TIMEOUT": "soon"}, "IDLE_TIMEOUT is 'soon': a time from 1s to 30d"),
        ({"IDLE_TIMEOUT": "0"}, "IDLE_TIMEOUT is '0'"),
        ({"IDLE_TIMEOUT": "nan"}, "IDLE_TIMEOUT is 'nan'"),
        ({"MEMORY_LIMIT": "512"}, "MEMORY_LIMIT is '512': an amount of memory from 64m to 1t"),
        ({"MEMORY_LIMIT": "lots"}, "MEMORY_LIMIT is 'lots'"),
        ({"CPU_QUOTA": "-1"}, "CPU_QUOTA is '-1': a number of microseconds"),
        ({"CPU_QUOTA": "0.5"}, "CPU_QUOTA is '0.5'"),
        ({"WARREN_CPUS": "0"}, "WARREN_CPUS is '0': a number from 0.05 to 256 is expected"),
        ({"WARREN_DEBUG": "maybe"}, "WARREN_DEBUG is 'maybe'"),
        ({"WARREN_ALLOWED_HOSTS": "a,,b"}, "WARREN_ALLOWED_HOSTS is 'a,,b'"),
        ({"WARREN_ALLOWED_HOSTS": "*"}, "WARREN_ALLOWED_HOSTS is"),
        ({"WARREN_LOG_LEVEL": "loud"}, "WARREN_LOG_LEVEL is 'loud'"),
        ({"WARREN_STATE_DIR": "/a\nb"}, "WARREN_STATE_DIR is '/a\\nb': a path is expected"),
        ({"WARREN_STATE_DIR": "~nobody-of-this-name/x"}, "WARREN_STATE_DIR is"),
        ({"WARREN_RUNTIME": "x" * 9999}, "WARREN_RUNTIME is 'xxx"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(environ: dict[str, str], message: str) -> None:
    refused = refusal(environ)
    assert message in refused.message
    assert "\n" not in refused.message
    assert len(refused.message) < 300


@given(st.sampled_from(list(OPTIONS)), st.text(max_size=30))
def test_any_text_is_taken_or_refused(name: str, text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        settings = read_settings({"WARREN_CONFIG": "/dev/null"}, flags={name: text})
        assert settings.sources[name].startswith("flag --")


def test_a_bad_flag_is_named() -> None:
    assert refusal(port="x").message == "the flag --port is 'x': a whole number from 1 to 65535 is expected"
    assert refusal(ports=1).remedy == "did you mean port?"


def test_a_secret_is_never_shown() -> None:
    assert "hunter 2" not in str(refusal({"WARREN_API_KEY": "hunter 2"}))
    settings = read({"WARREN_API_KEY": "hunter2"})
    assert settings.api_key == "hunter2"
    assert "hunter2" not in repr(settings)
    assert OPTIONS["api_key"].show(settings.api_key) == "(set)"


@pytest.mark.parametrize(
    ("environ", "pool"),
    [
        ({"POOL_SIZE": "140"}, (2, 140, 140)),
        ({"POOL_SIZE": "1"}, (1, 1, 100)),
        ({"POOL_SIZE": "0"}, (0, 0, 100)),
        ({"POOL_SIZE": "10"}, (2, 10, 100)),
        ({"MAX_POOL_SIZE": "3"}, (2, 3, 3)),
        ({"MAX_POOL_SIZE": "1"}, (1, 1, 1)),
        ({"MIN_POOL_SIZE": "130"}, (130, 130, 130)),
        ({"MIN_POOL_SIZE": "6", "MAX_POOL_SIZE": "50"}, (6, 6, 50)),
        ({"MIN_POOL_SIZE": "0", "POOL_SIZE": "0", "MAX_POOL_SIZE": "0"}, (0, 0, 0)),
    ],
)
def test_what_is_not_said_of_the_pool_makes_way(environ: dict[str, str], pool: tuple[int, int, int]) -> None:
    settings = read(environ)
    assert (settings.pool_min, settings.pool_size, settings.pool_max) == pool


def test_a_value_that_made_way_says_for_what() -> None:
    assert read({"POOL_SIZE": "140"}).sources["pool_max"] == "follows pool_size"
    settings = read({"WARREN_MAX_COMMAND_TIMEOUT_S": "1m"})
    assert (settings.command_timeout_s, settings.sources["command_timeout_s"]) == (60, "follows max_command_timeout_s")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"POOL_SIZE": "9", "MAX_POOL_SIZE": "8"}, "pool_size is 9 (environment POOL_SIZE), but pool_max is 8 "
            "(environment MAX_POOL_SIZE)"),
        ({"MIN_POOL_SIZE": "9", "POOL_SIZE": "8"}, "pool_min is 9 (environment MIN_POOL_SIZE), but pool_size is 8"),
        ({"MIN_POOL_SIZE": "9", "MAX_POOL_SIZE": "8"}, "pool_min is 9 (environment MIN_POOL_SIZE), but pool_max is 8"),
        ({"WARREN_COMMAND_TIMEOUT_S": "2h", "WARREN_MAX_COMMAND_TIMEOUT_S": "1h"}, "command_timeout_s is 7200"),
    ],
)  # fmt: skip
def test_a_contradiction_names_both_sources(environ: dict[str, str], message: str) -> None:
    assert message in refusal(environ).message


def test_an_unknown_variable_is_a_warning() -> None:
    (warning,) = read({"WARREN_PROT": "1", "PROT": "1"}).warnings
    assert warning == "the environment variable WARREN_PROT is no option and does nothing; did you mean WARREN_PORT?"


def test_a_file_may_hold_every_type(file: Path) -> None:
    file.write_text(
        'port = 9000\nworker_id = "w-1"\ndebug = true\ncpus = 1.5\nidle_timeout_s = "10m"\nmax_lifetime_s = 60\n'
        'memory_limit = "1g"\nallowed_hosts = ["a.example", "b.example"]\napi_key = "k"\nregistry_dir = ""\n'
    )
    settings = read_settings({}, uid=0, config_file=file)
    assert (settings.port, settings.worker_id, settings.debug, settings.cpus) == (9000, "w-1", True, 1.5)
    assert (settings.idle_timeout_s, settings.max_lifetime_s, settings.memory_mb) == (600, 60, 1024)
    assert (settings.allowed_hosts, settings.api_key) == (("a.example", "b.example"), "k")
    assert settings.registry_dir is None


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("prot = 1", ": there is no option 'prot'", "did you mean port?"),
        ("memory_mb = 512", ": there is no option 'memory_mb'", "did you mean memory_limit?"),
        ("IDLE_TIMEOUT = 3", ": there is no option 'IDLE_TIMEOUT'", "did you mean idle_timeout_s?"),
        ("[pool]\nsize = 3", ": there is no option 'pool'", "did you mean pool_"),
        ("port = 8000\nhost = \nport = 1", ", line 2: this is not TOML: Invalid value", ""),
        ("port = 8000\nport = 8001", ", line 2: this is not TOML", ""),
        ("port = [\n\n", ", line 1: this is not TOML", ""),
        ("x = '\\u00ff'\ny", ", line 2: this is not TOML", ""),
    ],
)
def test_a_mistake_in_the_file_names_file_and_place(text: str, message: str, remedy: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        read_settings({}, uid=0, config_file=file)
    assert caught.value.message.startswith(f"{file}{message}")
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("value", ["'abc'", "true", "8000.0", "[1]", "{a = 1}", "1979-05-27", "''"])
def test_a_bad_value_in_the_file_names_key_and_file(value: str, file: Path) -> None:
    file.write_text(f"port = {value}")
    with pytest.raises(InvalidRequest, match="a whole number from 1 to 65535 is expected") as caught:
        read_settings({}, uid=0, config_file=file)
    assert caught.value.message.startswith(f"port in {file} is ")


def test_a_list_in_the_file_keeps_its_items(file: Path) -> None:
    """Those of secrets are separated by spaces, because a secret may have a comma in it."""
    file.write_text('other_cluster_secrets = ["first,secret,of-all", "second-secret-of-all"]\n')
    file.chmod(0o600)
    settings = read_settings({}, uid=0, config_file=file)
    assert settings.other_cluster_secrets == ("first,secret,of-all", "second-secret-of-all")


def test_a_file_that_is_not_utf_8(file: Path) -> None:
    file.write_bytes(b"host = '\xff'")
    with pytest.raises(InvalidRequest, match="line 1: this is not UTF-8"):
        read_settings({}, uid=0, config_file=file)


def test_a_file_with_a_secret_must_not_be_readable_by_everybody(file: Path) -> None:
    file.write_text("api_key = 'k'")
    file.chmod(0o644)
    with pytest.raises(InvalidRequest, match="everybody can read it") as caught:
        read_settings({}, uid=0, config_file=file)
    assert caught.value.remedy == f"chmod 600 {file}"
    file.chmod(0o640)
    assert read_settings({}, uid=0, config_file=file).api_key == "k"
    file.chmod(0o644)
    file.write_text("port = 1")
    assert read_settings({}, uid=0, config_file=file).port == 1


def test_which_file_is_read(tmp_path: Path) -> None:
    def made(name: str, port: int) -> Path:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "warren.toml").write_text(f"port = {port}")
        return tmp_path / name / "warren.toml"

    home = {"HOME": str(tmp_path / "home")}
    assert read_settings(home, uid=1000).port == 8000
    made("home/.config/warren", 2)
    made("xdg/warren", 3)
    variable = {**home, "WARREN_CONFIG": str(made("variable", 4))}
    flag, parameter = made("flag", 5), made("parameter", 6)
    assert read_settings(home, uid=1000).port == 2
    assert read_settings({**home, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}, uid=1000).port == 3
    assert read_settings(variable, uid=0).port == 4
    assert read_settings(variable, uid=0, flags={"config": str(flag)}).port == 5
    assert read_settings(variable, uid=0, flags={"config": str(flag)}, config_file=parameter).port == 6


def test_root_has_a_file_of_the_system() -> None:
    assert config._default_file({"HOME": "/root", "XDG_CONFIG_HOME": "/x"}, 0) == Path("/etc/warren/warren.toml")


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"there is no file {tmp_path}/nope"):
        read_settings({"WARREN_CONFIG": f"{tmp_path}/nope"}, uid=0)
    with pytest.raises(InvalidRequest, match="cannot be read: Is a directory"):
        read_settings({}, uid=0, config_file=tmp_path)


def test_a_session_timeout_is_for_both_limits_of_a_session_unless_one_has_a_value_of_its_own() -> None:
    both = read_settings({"SESSION_TIMEOUT": "2h"}, uid=0)
    assert (both.idle_timeout_s, both.max_lifetime_s) == (7200, 7200)
    one = read_settings({"SESSION_TIMEOUT": "2h", "IDLE_TIMEOUT": "10m"}, uid=0)
    assert (one.idle_timeout_s, one.max_lifetime_s) == (600, 7200)


def test_names_are_unique() -> None:
    for names in (
        [name for option in OPTIONS.values() for name in option.variables if name != "SESSION_TIMEOUT"],
        [option.flag for option in OPTIONS.values() if option.flag],
        [option.attribute for option in OPTIONS.values()],
    ):
        assert len(names) == len(set(names))


def test_every_option_has_one_sentence_of_help() -> None:
    for option in OPTIONS.values():
        assert re.fullmatch(r"[A-Z][^.]*\.", option.help), option.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_config_reads_the_environment(path: Path) -> None:
    # The attacks look for leaks of an environment, and so have to lay one out and to search one. The SDK stands on its
    # own in other people's programs, where there are no settings. Runners work inside a sandbox. mini-swe-agent passes
    # the variables on that its user names.
    readers = ("config/settings.py", "sdk/discovery.py", "integrations/mini_swe_agent.py")
    if str(path.relative_to(PACKAGE)) not in readers and not {
        "attack",
        "runners",
    } & set(path.parts):
        assert not names_used(path) & {"environ", "environb", "getenv", "getenvb", "expandvars"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_outermost_layers_know_the_table_of_options(path: Path) -> None:
    allowed = {PACKAGE / "config" / "settings.py", PACKAGE / "app" / "wiring.py", PACKAGE / "config" / "options.py"}
    if path not in allowed and PACKAGE / "cli" not in path.parents:
        assert "warren.config.options" not in path.read_text()


def names_used(path: Path) -> set[str]:
    """What a file imports, and attributes it asks for."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.name for node in nodes if isinstance(node, ast.alias)}


def test_the_environment_of_this_process_is_what_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_CONFIG", "/dev/null")
    monkeypatch.setenv("WARREN_PORT", "4321")
    assert read_settings().port == 4321


@pytest.mark.parametrize(
    ("text", "proxies"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("10.0.0.0/8, 127.0.0.1/32,::1", ("10.0.0.0/8", "127.0.0.1", "::1")),
        ("2001:DB8::/32,2001:db8::/32", ("2001:db8::/32",)),
        ("", ()),
    ],
)
def test_proxies_are_addresses_and_networks(text: str, proxies: tuple[str, ...]) -> None:
    assert read(trusted_proxies=text).trusted_proxies == proxies


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "127.0.0.1:80", "10.0.0.0/33", "*", "127.0.0.1,,"])
def test_a_proxy_that_is_no_address_is_refused(text: str) -> None:
    assert "addresses and networks" in refusal(trusted_proxies=text).message
