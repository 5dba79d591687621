"""Programs that start the program named among their arguments.

The table says for each which of its options take a value and how many operands come before the command. An option that
is not in the table makes the command unknown: it might take the next word as its value.
"""

import re
from dataclasses import dataclass
from typing import Final

from warren.governance.policy.shell_words import Word

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_ANY_ASSIGNMENT: Final = re.compile(r"([^-=][^=]*|)=", re.S)  # `env` takes any name, even none
_NUMBER: Final = re.compile(r"-\d+")


@dataclass(frozen=True, slots=True)
class Launcher:
    """`flags` and `valued` are letters of short options, `words` long options, those with `=` take a value.

    `stops` are options with which no command is started. `any_names`: whatever has a `=` in it is an assignment, and a
    lone `-` is an option.
    """

    flags: str = ""
    valued: str = ""
    words: str = ""
    operands: int = 0
    assignments: bool = False
    stops: str = "--help --version"
    numbers: bool = False
    any_names: bool = False


LAUNCHERS: Final[dict[str, Launcher]] = {
    "builtin": Launcher(),
    "busybox": Launcher(stops="--help --list --list-full"),
    "chroot": Launcher(words="--userspec= --groups= --skip-chdir", operands=1),
    "command": Launcher("p", stops="-v -V"),
    "coproc": Launcher(stops=""),
    "doas": Launcher("n", "u", assignments=True, stops="-L -C"),
    "env": Launcher("i0v", "uC", "--ignore-environment --null --unset= --chdir= --debug",
                    assignments=True, any_names=True),
    "exec": Launcher("cl", "a", stops=""),
    "fakeroot": Launcher(),
    "ionice": Launcher("t", "cn", "--ignore --class= --classdata=", stops="-p -P -u -h -V --help --version"),
    "nice": Launcher("", "n", "--adjustment=", numbers=True),
    "nohup": Launcher(),
    "setsid": Launcher("cfw", "", "--ctty --fork --wait"),
    "stdbuf": Launcher("", "ioe", "--input= --output= --error="),
    "sudo": Launcher("AbEHknPSB", "CDghpRrTtUu", "--preserve-env --user= --group=", assignments=True, stops="-l -v -K",
                     any_names=True),
    "taskset": Launcher("c", "", "--cpu-list", operands=1, stops="-p --help --version"),
    "time": Launcher("pvaq", "fo", "--portability --verbose --append --quiet --format= --output=", assignments=True),
    "timeout": Launcher("v", "ks", "--foreground --preserve-status --verbose --kill-after= --signal=", operands=1),
    "toybox": Launcher(stops="--help --long"),
    "xargs": Launcher("0rtxpo", "IaEdLnPs", "--null --no-run-if-empty --max-args= --max-procs= --delimiter="),
}  # fmt: skip
# What these start stands somewhere among their arguments, as words or as a text for a shell.
OPAQUE: Final = frozenset({
    "aarch64", "abduco", "arm64", "at", "batch", "bwrap", "capsh", "catchsegv", "ccache", "cgexec", "choom", "chpst",
    "chronic", "chrt", "coresched", "cpulimit", "crontab", "daemon", "daemonize", "dbus-launch", "dbus-run-session",
    "distcc", "dtach", "dumb-init", "eatmydata", "entr", "envdir", "envuidgid", "expect", "fakechroot", "faketime",
    "fd", "fdfind", "firejail", "flock", "gdb", "gdbserver", "gosu", "hyperfine", "i386", "i486", "i586", "i686",
    "ifne", "linux32", "linux64", "lldb", "logsave", "ltrace", "mispipe", "newgrp", "nq", "nsenter", "numactl",
    "parallel", "pee", "perf", "pkexec", "prlimit", "proot", "proxychains", "proxychains4", "rlwrap", "rr", "rtcwake",
    "run-parts", "runcon", "runuser", "schroot", "screen", "script", "scriptlive", "sem", "setarch", "setlock",
    "setpriv", "setuidgid", "sg", "socat", "softlimit", "ssh-agent", "start-stop-daemon", "strace", "su", "su-exec",
    "systemd-cat", "systemd-inhibit", "systemd-nspawn", "systemd-run", "tini", "tmux", "torify", "torsocks", "trickle",
    "tsocks", "tsp", "uclampset", "uname26", "unbuffer", "unshare", "valgrind", "watch", "x86_64", "xinit", "xvfb-run",
    "zrun",
})  # fmt: skip
_LOADER: Final = re.compile(r"(ld-(linux|musl).*\.so.*|ld.*\.so(\.\d+)?)")


def find_launcher(name: str) -> Launcher | None:
    if _LOADER.fullmatch(name):
        return Launcher(
            words="--library-path= --preload= --argv0= --inhibit-cache --inhibit-rpath=", stops="--list --verify"
        )
    return LAUNCHERS.get(name)


@dataclass(frozen=True, slots=True)
class Start:
    """The words of the command that is started; none if nothing is. `why`: what makes that a guess."""

    words: tuple[Word, ...] = ()
    why: str = ""
    assigned: tuple[str, ...] = ()


def find_started(words: tuple[Word, ...], kind: Launcher) -> Start:
    """Finds the command that a launcher starts. `words` are its arguments, without its own name."""
    place, operands, assigned, why = 0, kind.operands, [], ""
    ended = False
    while place < len(words):
        word = words[place]
        text = word.text if word.text is not None else word.begins
        if word.many:
            why = "an argument before the command may be no word or several"
        pattern = _ANY_ASSIGNMENT if kind.any_names else _ASSIGNMENT
        if kind.assignments and (found := pattern.match(text)):
            assigned.append(found[1])
        elif text == "-" and not ended:
            why = why or ("" if kind.any_names else "it cannot be told what a lone `-` means here")
        elif text.startswith("-") and len(text) > 1 and not ended:
            if text in kind.stops.split():
                return Start()
            ended = text == "--"
            width = 1 if ended else _width(text, kind)
            why = why or ("" if width else f"the option {text[:40]} is not known here")
            place += max(width, 1)
            continue
        elif operands:
            operands -= 1
        else:
            break
        place += 1
    return Start(words[place:], why if place or why else "", tuple(assigned))


def _width(text: str, kind: Launcher) -> int:
    """Returns how many words an option takes, 0 if it is not known."""
    if text.startswith("--"):
        name, equals, _ = text.partition("=")
        known = kind.words.split()
        if f"{name}=" in known:
            return 1 if equals else 2
        return 1 if name in known else 0
    if kind.numbers and _NUMBER.fullmatch(text):
        return 1
    for number, letter in enumerate(text[1:], 2):
        if letter in kind.valued:
            return 1 if number < len(text) else 2
        if letter not in kind.flags:
            return 0
    return 1
