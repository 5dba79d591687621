"""The two images that Warren builds.

`base`: a small Debian (or Ubuntu) made on this machine from its own package sources, by mmdebstrap in namespaces of its
own: if this program dies, the whole build dies with it, and its mounts are gone.
`host`: a skeleton without programs; the host's /usr is mounted into it, read-only. It copies only those files of the
host's /etc that are listed here and that everybody may read, and no keys.
"""

import fnmatch
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from warren.images.trees.tree import Tree
from warren.model.errors import NoSpace, PermissionDenied, Unavailable
from warren.model.image import Recipe, Stage

Progress = Callable[[str, float | None], None]
BASE = "base"
BASE_RECIPE = Recipe((Stage("scratch"),), about="1 min")
"""Stands for `build_base` where recipes are listed; nothing runs its steps."""

# fmt: off
BASE_PACKAGES = (
    "apt", "bash", "bzip2", "ca-certificates", "coreutils", "curl", "diffutils", "file", "findutils", "gawk", "git",
    "grep", "gzip", "jq", "less", "make", "nano", "nodejs", "patch", "procps", "python-is-python3", "python3",
    "python3-pip", "python3-venv", "ripgrep", "sed", "tar", "tree", "unzip", "usr-is-merged", "xz-utils", "zip",
)
_PLAIN_PACKAGES = ("apt", "ca-certificates", "usr-is-merged")
# fmt: on
# fmt: off
_EXCLUDED = (
    "/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "*.pod",
    # Parts of git for servers, mailboxes and repositories of a hundred gigabytes, 2 MB each.
    "/usr/bin/scalar", "/usr/lib/git-core/scalar", "/usr/bin/git-shell", "/usr/lib/git-core/git-shell",
    "/usr/lib/git-core/git-http-push", "/usr/lib/git-core/git-imap-send",
)
# fmt: on
_EXPECTED_EVENTS = 500  # download, unpack and set-up of each package, as counted on Debian 12
_FALLBACK_SUITE = "bookworm"
_RELEASES = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky", "unstable": "sid"},
    "ubuntu": {"22.04": "jammy", "24.04": "noble", "26.04": "resolute"},
}
_STEPS = {
    "running apt-get update": "reading the package lists",
    "downloading packages": "downloading packages",
    "extracting archives": "unpacking the core",
    "installing essential": "installing the core",
    "installing remaining": "installing the programs",
    "cleaning package lists": "cleaning up",
}

_HOST_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# fmt: off
_HOST_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "gai.conf", "host.conf", "inputrc", "java*", "ImageMagick*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "localtime", "lsb-release", "magic", "magic.mime", "mime.types", "os-release", "perl", "pki",
    "protocols", "python3*", "R", "redhat-release", "services", "shells", "ssl", "terminfo", "timezone", "vim", "xml",
)
# fmt: on
_NEVER = ("private", "*.key", "*.pem.key", "*secret*", "*passw*", "*credential*", "*token*")
_MAX_ETC_FILE = 32 << 20


def build_base(target: Path, scratch: Path, progress: Progress) -> None:
    _build_system(host_suite(), BASE_PACKAGES, target, scratch, progress)


def build_plain(suite: str, target: Path, scratch: Path, progress: Progress) -> None:
    """Builds a release with only its essential packages and apt, as `debian:bookworm` is elsewhere."""
    _build_system(suite, _PLAIN_PACKAGES, target, scratch, progress)


def plain_suite(name: str, os_release: Path = Path("/etc/os-release")) -> str:
    """Returns the code name of the release that a name such as `debian:12` or `ubuntu:noble` stands for. Returns ""
    unless this machine runs that distribution and so knows its package sources."""
    distribution, _, tag = name.partition(":")
    if distribution not in _RELEASES or distribution != _read_release(os_release).get("ID"):
        return ""
    tag = tag.removesuffix("-slim")
    if tag in ("", "latest", "stable"):
        return host_suite(os_release)
    suite = _RELEASES[distribution].get(tag, tag)
    return suite if suite in _RELEASES[distribution].values() else ""


def _build_system(suite: str, packages: Sequence[str], target: Path, scratch: Path, progress: Progress) -> None:
    if os.geteuid() != 0:
        raise PermissionDenied("building an image needs root", remedy="run it with sudo")
    for program, package in (("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            raise Unavailable(
                f"{program} is not installed, the image is built with it",
                remedy=f"apt-get install {package}; without apt: `warren image build host` or `warren image import`",
            )
    _run_mmdebstrap(_mmdebstrap_command(suite, packages, target, scratch), progress)
    progress("cleaning up", 0.97)
    with Tree(target) as tree:
        for path in _traces_of(tree):
            tree.remove_file(path)
        tree.put_file("/etc/machine-id", "")


def host_suite(os_release: Path = Path("/etc/os-release")) -> str:
    """Returns the code name of the host's release if it is a Debian or an Ubuntu, else Debian 12's."""
    values = _read_release(os_release)
    return values.get("VERSION_CODENAME", _FALLBACK_SUITE) if values.get("ID") in _RELEASES else _FALLBACK_SUITE


def _read_release(os_release: Path) -> dict[str, str]:
    try:
        lines = [line.split("=", 1) for line in os_release.read_text().splitlines() if "=" in line]
    except OSError:
        return {}
    return {name: value.strip('"') for name, value in lines}


def _mmdebstrap_command(suite: str, packages: Sequence[str], target: Path, scratch: Path) -> list[str]:
    own_namespaces = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    return [
        *("env", f"TMPDIR={scratch}"),
        *own_namespaces,
        "--mount-proc",
        "mmdebstrap",
        "--mode=root",
        "--variant=essential",
        "--format=directory",
        "--verbose",
        f"--include={','.join(packages)}",
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=APT::Sandbox::User "root"',
        *options,
        suite,
        str(target),
    ]


def _run_mmdebstrap(command: list[str], progress: Progress) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        tail = _follow(process.stdout, progress)
        code = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.read()  # returns when the last process of the build has died
        raise
    finally:
        process.stdout.close()
    if code != 0:
        raise _build_failure(tail, code)


def _follow(lines: Iterator[str], progress: Progress) -> list[str]:
    """Reports progress from mmdebstrap's output, and returns its last lines."""
    tail: list[str] = []
    step, events = "starting", 0
    for line in lines:
        tail = [*tail[-39:], line.rstrip()]
        if line.startswith("I: "):
            step = next((words for start, words in _STEPS.items() if start in line), step)
            progress(step, min(0.95, events / _EXPECTED_EVENTS))
        elif re.match(r"Get:|Unpacking |Setting up ", line):
            events += 1
            progress(step, min(0.95, events / _EXPECTED_EVENTS))
    return tail


def _build_failure(tail: list[str], code: int) -> Exception:
    text = "\n".join(tail)
    if "No space left on device" in text:
        return NoSpace("the disk is full, the image was not built", remedy="free about 1 GB and run it again")
    reasons = [line for line in tail if line.startswith(("E: ", "Err:", "dpkg: error"))]
    reason = (reasons or tail or [f"it ended with code {code}"])[0]
    return Unavailable(
        f"mmdebstrap could not build the image: {reason}",
        remedy="see that `apt-get update` works on this machine, then run it again",
    )


def _traces_of(tree: Tree) -> Iterator[str]:
    """Yields files copied from this machine: its settings, and package sources, which may hold passwords."""
    yield from ("etc/apt/sources.list", "etc/apt/auth.conf", "etc/apt/apt.conf.d/99mmdebstrap", "var/log/dpkg.log")
    for directory in ("etc/apt/sources.list.d", "etc/apt/auth.conf.d", "var/log/apt"):
        if tree.stat(directory) is None:
            continue
        fd = tree.open_file(directory)
        try:
            yield from (f"{directory}/{name}" for name in os.listdir(fd))
        finally:
            os.close(fd)


def build_host(target: Path, scratch: Path, progress: Progress) -> None:
    progress("copying what programs need of /etc", 0.1)
    if not Path("/bin").is_symlink():
        raise Unavailable(
            "this machine's /bin is not a link to /usr/bin, the image `host` cannot be made of it",
            remedy="use `warren image build base` or `warren image import`",
        )
    target.mkdir()
    with Tree(target) as tree:
        for name in ("usr", "etc", "home", "opt", "run", "srv", "var", "mnt"):
            tree.make_directory(name)
        tree.make_directory("root", 0o700)
        for name in _HOST_LINKS:
            if Path("/", name).is_symlink():
                tree.put_link(name, f"usr/{name}")
        copy_public_etc(Path("/etc"), tree)
        tree.put_file("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n")
        # The host's Python is marked as managed by the system; a sandbox is disposable.
        tree.put_file("etc/pip.conf", "[global]\nbreak-system-packages = true\n")


def copy_public_etc(etc: Path, tree: Tree) -> None:
    for pattern in _HOST_ETC:
        for path in sorted(etc.glob(pattern)):
            _copy_public(path, f"etc/{path.name}", tree)


def _copy_public(source: Path, path: str, tree: Tree) -> None:
    """Copies links, and directories and files that everybody may read. Skips what looks like a key."""
    found = source.lstat()
    if any(fnmatch.fnmatch(source.name.lower(), pattern) for pattern in _NEVER):
        return
    if stat.S_ISLNK(found.st_mode):
        tree.put_link(path, os.readlink(source))
    elif stat.S_ISDIR(found.st_mode) and found.st_mode & 0o005 == 0o005:
        tree.make_directory(path)
        for child in sorted(source.iterdir()):
            _copy_public(child, f"{path}/{child.name}", tree)
    elif stat.S_ISREG(found.st_mode) and found.st_mode & 0o004 and found.st_size <= _MAX_ETC_FILE:
        tree.put_file(path, source.read_bytes(), 0o755 if found.st_mode & 0o001 else 0o644)
