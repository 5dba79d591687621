#!/bin/sh
# From a fresh checkout to a first sandbox. Installs only what is missing; running it again is harmless and fast.
set -eu
cd "$(dirname "$0")"

steps=6
step=0
say() {
    step=$((step + 1))
    printf '[%d/%d] %s\n' "$step" "$steps" "$*"
}
stop() {
    printf '\nquickstart: %s\n' "$*" >&2
    exit 1
}

say "looking at this machine"
[ "$(uname -s)" = Linux ] || stop "Warren makes Linux sandboxes and needs a Linux machine; this is $(uname -s)."
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
    sudo -v || stop "sudo did not let you in. Warren needs root to make namespaces and mounts: run ./quickstart.sh as root."
else
    stop "Warren needs root to make namespaces, cgroups and mounts; you are $(id -un) and there is no sudo.
Become root (su -) and run $(pwd)/quickstart.sh, or have an administrator install sudo and put you into its group:
    apt-get install sudo && adduser $(id -un) sudo"
fi
python=$(scripts/find-python) || exit 1

say "programs of the system"
PYTHON=$python scripts/system-packages run || exit 1

say "Python environment (.venv)"
if [ ! -e .venv/.quickstart ] || [ pyproject.toml -nt .venv/.quickstart ]; then
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --editable . ||
        stop "pip could not install Warren's packages, see above. It needs a package index it can reach."
    touch .venv/.quickstart
fi

say "agent and launcher"
make --no-print-directory --silent -C agent || stop "the agent could not be built, see above."
make --no-print-directory --silent -C launcher || stop "the launcher could not be built, see above."

# sudo drops the environment: the one setting that says where things live is handed on.
warren() { $as_root env ${WARREN_STATE_DIR:+"WARREN_STATE_DIR=$WARREN_STATE_DIR"} .venv/bin/warren "$@"; }

say "root filesystem of the sandboxes (image \`base\`, once, about a minute)"
warren image build base --if-missing || exit 1

say "a first sandbox"
warren run -- bash -c 'echo "Hello from $(hostname): $(whoami) in $PWD, $(python --version), node $(node --version)."' || exit 1

cat <<END

Warren works. Next:
    ${as_root:+$as_root }.venv/bin/warren run -- python3 -c 'print(6 * 7)'
    ${as_root:+$as_root }.venv/bin/warren shell
    ${as_root:+$as_root }.venv/bin/warren doctor
END
