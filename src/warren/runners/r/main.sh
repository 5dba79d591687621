# Runs the cells of an R context. The keeper starts it with a socket on descriptor 3 and pipes on 1 and 2.
#
# R can neither use a socket that it inherits nor keep a descriptor from the programs that it starts. So R itself, which
# runs main.R, has none: it reads requests from a named pipe between cells, and writes each frame to a file whose name
# it sends through another one. The two programs in the background, which ignore SIGINT, carry them to the socket.
command -v Rscript >/dev/null || { echo "Rscript: not found" >&2; exit 127; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/r-context-XXXXXX") && mkfifo "$folder/requests" "$folder/frames" "$folder/sent" || exit
(
    trap 'kill $!; exit' TERM
    cat <&3 1<>"$folder/requests" &
    wait
    : >"$folder/requests" # the keeper is gone: R, which may be about to open it, reads the end
) &
reader=$!
while read -r name; do
    cat "$folder/$name" >&3
    echo "$name"
done <>"$folder/frames" 1<>"$folder/sent" &
writer=$!
trap : INT # for this shell only: R gets the signal, too
Rscript --no-save --no-restore "${0%/*}/main.R" "$folder" 3<&-
code=$?
kill "$reader" "$writer"
rm -rf "$folder"
exit "$code"
