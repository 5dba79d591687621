#!/bin/sh
# From a fresh checkout to a running server. Installs only what is missing; running it again is harmless and fast.
# The server listens on port 8000, or on WARREN_PORT; its log and its process id are in the state directory.
set -eu
cd "$(dirname "$0")"

steps=7
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
# To a client an empty key means no key. Here nobody has given one: the server's own is to be found.
[ -n "${WARREN_API_KEY:-}" ] || unset WARREN_API_KEY

say "programs of the system"
PYTHON=$python scripts/system-packages run || exit 1

say "Python environment (.venv)"
if [ ! -e .venv/.quickstart ] || [ pyproject.toml -nt .venv/.quickstart ]; then
    pip() { .venv/bin/python -m pip install --disable-pip-version-check --find-links build/wheels "$@"; }
    no_packages() {
        [ -z "$fresh" ] || rm -rf .venv
        stop "pip could not install Warren's packages, see above. It needs a package index it can reach."
    }
    fresh=
    mkdir -p build/wheels
    if [ ! -x .venv/bin/python ]; then
        fresh=yes
        # Exactly the files that requirements.lock has the hashes of, and nothing that they would pull in. They stay in
        # build/wheels, so that another environment needs no download.
        echo "      making .venv with $python"
        "$python" -m venv .venv
        fetched=0
        .venv/bin/python scripts/fetch_wheels.py requirements.lock build/wheels || fetched=$?
        case $fetched in
            0)
                echo "      all packages are here; pip installs them, which takes about half a minute"
                # The index is needed only if one of the files has to be compiled here.
                pip --quiet --no-index --require-hashes --no-deps --requirement requirements.lock 2>/dev/null ||
                    pip --require-hashes --no-deps --requirement requirements.lock || no_packages
                pip --quiet --no-deps --no-build-isolation --editable . --editable packages/attack || no_packages
                ;;
            3)
                rm -rf .venv
                stop "the package index gives other files than requirements.lock has the hashes of. Nothing was installed."
                ;;
            *)
                echo "      the package index lacks files of requirements.lock: taking what pyproject.toml allows, without hashes"
                pip --editable '.[server]' --editable packages/attack || no_packages
                ;;
        esac
    else
        pip --editable '.[server]' --editable packages/attack || no_packages
    fi
    touch .venv/.quickstart
fi

say "agent and launcher (compiled from C once, about 20 seconds)"
make --no-print-directory --silent -C agent || stop "the agent could not be built, see above."
make --no-print-directory --silent -C launcher || stop "the launcher could not be built, see above."

# sudo drops the environment: the settings in force are handed on, and shown in the lines at the end. Not those that are
# secret, since everybody can see the arguments of a process, nor those that are for clients: the credentials file of a user
# who calls sudo is not for root.
settings=$(.venv/bin/python -c 'import os, re, shlex
other = re.compile("KEY|SECRET|PASSWORD|REDIS_URL|WARREN_URL|WARREN_MCP" + "|WARREN_CREDENTIALS" * (os.geteuid() != 0))
names = [name for name in sorted(os.environ) if re.fullmatch("WARREN_[A-Z0-9_]+", name) and not other.search(name)]
print(" ".join(name + "=" + shlex.quote(os.environ[name]) for name in names))')
as_root_env() { eval "$as_root env $settings \"\$@\""; }
warren() { as_root_env .venv/bin/warren "$@"; }
shown="${as_root:+$as_root }${settings:+env $settings }.venv/bin/warren"

config=$(warren config --json) || stop "the configuration has a mistake, see above."
option() {
    printf '%s' "$config" | .venv/bin/python -c \
        'import json, sys; value = json.load(sys.stdin)["options"][sys.argv[1]]["value"]; print("" if value is None else value)' "$1"
}
state=$(option state_dir)
# The server holds a lock on its state directory for as long as it runs; with several workers, on unit/ in it.
is_locked() { $as_root [ -e "$1" ] && ! $as_root flock --nonblock "$1" true; }
is_running() {
    lock=$state/unit/server.lock
    is_locked "$lock" || { lock=$state/server.lock && is_locked "$lock"; }
}
check_port() {
    .venv/bin/python -c 'import socket, sys
try:
    address = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=socket.SOCK_STREAM)[0]
    with socket.socket(address[0]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address[4])
except PermissionError:
    pass
except OSError:
    sys.exit(1)' "$(option host)" "$(option port)" || stop "port $(option port) is taken, by another program than a server of $state.
Choose another: WARREN_PORT=8080 ./quickstart.sh"
}
is_running || check_port

say "root filesystem of the sandboxes (image \`base\`, once, about a minute)"
warren image build base --if-missing || exit 1

say "a first sandbox"
warren run -- bash -c 'echo "Hello from $(hostname): $(whoami) in $PWD, $(python --version), node $(node --version)."' || exit 1

say "the server"
host=$(option host)
case $host in
    0.0.0.0 | ::) host=127.0.0.1 ;;
    *:*) host="[$host]" ;;
esac
url="http://$host:$(option port)"
log=$(option log_file)
is_log_given=$log
log=${log:-$state/server.log}
log_line="Its log is $log."
out=$state/server.out   # what the server says when it starts, or fails to; all else is in the log
[ -z "$(option tls_cert)" ] || url="https${url#http}"

# Where a server leaves its first key, and where this user's own clients look for it.
found_key() { "$@" .venv/bin/python -c 'import sys; from warren.sdk.discovery import find_key; print(find_key(sys.argv[1]))' "$url"; }
keep_key() { .venv/bin/python -c 'import sys; from warren.sdk.discovery import credentials_path, write_key
write_key(credentials_path(), sys.argv[1], sys.stdin.read().strip())' "$url"; }
# The key as a file that curl reads: every user of the machine can see the arguments of a process.
header_file() { .venv/bin/python -c 'import os, sys; from warren.sdk.discovery import credentials_path, find_key
key = find_key(sys.argv[1])
if key:
    path = credentials_path().with_name("header-" + sys.argv[1].rpartition(":")[2])
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write("X-API-Key: " + key + "\n")
    print(path)' "$url"; }

answers() { curl -fsS --max-time 10 "$url/version" 2>/dev/null | grep -q '"name": *"warren"'; }
version_of_server() { curl -fsS --max-time 10 "$url/version" | .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["version"])'; }
confirm() {
    [ -t 0 ] || return 1
    printf '%s [y/N] ' "$1"
    read -r reply
    [ "$reply" = y ] || [ "$reply" = Y ]
}

if is_running; then
    pid=$($as_root cat "$lock")
    answers || stop "a server (process $pid) has the state directory $state, but it does not answer at $url.
Was it started with another port? Then set WARREN_PORT to it. Is it stuck? Then end it: ${as_root:+$as_root }kill $pid"
    theirs=$(version_of_server) ours=$(.venv/bin/warren --version | cut -d" " -f2)
    if [ "$theirs" = "$ours" ]; then
        echo "It is already running (process $pid), and is left as it is."
        # Only a server that this script has started writes to this file by itself.
        [ -n "$is_log_given" ] || [ "$($as_root cat "$state/server.pid" 2>/dev/null)" = "$pid" ] ||
            log_line="Its log is where process $pid was started."
    elif confirm "A server of version $theirs is running (process $pid). Restart it with $ours? Its sessions go on."; then
        $as_root kill "$pid"
        while is_running; do sleep 0.2; done
    else
        echo "A server of version $theirs is running (process $pid), and is left as it is. For version $ours stop it, and run this again: ${as_root:+$as_root }kill $pid"
    fi
fi
if ! is_running; then
    check_port
    $as_root sh -c 'umask 077; : >"$1"; chmod 600 "$1"' sh "$out"
    pid=$(as_root_env sh -c 'trap "" HUP; setsid .venv/bin/warren serve --log-file "$3" >>"$1" 2>&1 </dev/null & echo "$!" | tee "$2"' sh "$out" "$state/server.pid" "$log")
    # It is up when it has said so: somebody else may be answering on its port.
    until $as_root grep -q '^Warren serves' "$out"; do
        if ! $as_root kill -0 "$pid" 2>/dev/null; then
            $as_root tail -n 5 "$out" >&2
            stop "the server did not start, see above. If its port is taken, choose another: WARREN_PORT=8080 ./quickstart.sh"
        fi
        sleep 0.1
    done
    echo "It runs in the background (process $pid)."
fi
curl="curl -sS"
has_key=yes
if [ "$(option auth)" != False ]; then
    if [ -n "$as_root" ] && [ -z "$(found_key)" ]; then
        found_key as_root_env | keep_key
    fi
    if [ -n "${WARREN_API_KEY:-}" ]; then
        curl='echo "X-API-Key: $WARREN_API_KEY" | curl -sS -H @-'
    else
        header=$(header_file)
        curl="curl -sS -H '@$header'"
        has_key=${header:+yes}
    fi
fi
try="$curl $url/execute -d '{\"thread_id\": \"hello\", \"command\": \"uname -a\"}'"
echo "    $try"
if [ -z "$has_key" ]; then
    echo "It wants an API key, and this user has none: make one with \`$shown keys create NAME --state-dir $state\`."
else
    answer=$(sh -c "$try") || stop "that request should have been answered, see above; the log is $log."
    case ${WARREN_API_KEY:+$answer} in
        *'"unauthorized"'*) stop "the server runs, but it does not take the key of the variable WARREN_API_KEY.
To use its own: unset WARREN_API_KEY, and run this again." ;;
    esac
    printf '%s' "$answer" | grep -Eq '"exit_code": ?0\b' || stop "that request should have worked. The answer was: $answer
The log is $log."
    printf '%.120s…\n' "$answer"
fi

has_python() {
    warren image list --json | .venv/bin/python -c 'import json, sys
sys.exit(all(one["name"] != "python" for one in json.load(sys.stdin)))'
}
ahead=
if ! has_python; then
    if confirm "Build the image \`python\` (numpy, pandas and more) now? It takes about 3 minutes; else the first session of Python3 does it."; then
        warren image build python || echo "It was not built, see above. The first session of Python3 tries it again."
    else
        ahead="
The first session of the environments Python3 and Node builds its image, which takes about 3 and 1 minutes. To do it ahead:
    $shown environments build Python3 Node"
    fi
fi

cat <<END

Warren works. From any terminal, and as often as you like:
    $try
    $url in a browser is the dashboard; \`$shown ui\` prints a link that signs you in.
    $url/docs in a browser shows every request there is.
    .venv/bin/python has the client (from warren import SandboxClient), and .venv/bin/warren --help lists the commands.
Without the server:
    $shown run -- python3 -c 'print(6 * 7)'
    $shown shell$ahead
$log_line
To stop it:  ${as_root:+$as_root }kill $pid
To start it: ./quickstart.sh, in the background as now; or, in the foreground with its log on this terminal, $shown serve
To start it with the machine (systemd), after stopping this one: $shown service install
END
