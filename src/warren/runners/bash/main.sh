# Runs the cells of a bash context. The keeper starts it with a socket on descriptor 3 and pipes on 1 and 2.
#
# Only an interactive shell survives what ends a script: SIGINT, ${name:?}, an unbound variable. It then reads its next
# line. So this becomes an interactive bash that reads cell.sh, over and over, from its standard input: one line takes
# a request, the next runs it, the last reports what came of it. functions.sh has what these lines call. The second one
# sources run.sh, because in a sourced file bash says nothing about jobs and about a terminal, which it does not have.
#
# The socket is 240. Cells run with it closed; the copy that bash keeps meanwhile is closed in what they start.
exec 240<&3 3<&- 241>&2 2>/dev/null
__warren_folder=${BASH_SOURCE%/*} exec "$BASH" --noprofile --noediting --rcfile "${BASH_SOURCE%/*}/functions.sh" -i <"${BASH_SOURCE%/*}/cell.sh"
