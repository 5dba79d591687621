# What the lines of cell.sh call. An interactive bash reads this file when it starts; see main.sh.
exec 2>&241 241>&-
declare +x __warren_folder
PS1='' PS2='' PS4='+ '
unset PROMPT_COMMAND MAILCHECK HISTFILE
set +H +o history -E
declare -i __warren_count=0 __warren_last=0
declare -A __warren_before=()
__warren_restarted=${__warren_restarted-}
declare +x __warren_restarted
__warren_options='' __warren_cell=':' __warren_code='' __warren_state='' __warren_exit='' __warren_exit_trap=''

# A frame to the keeper: its type and its JSON.
__warren_send() {
    local LC_ALL=C
    local size=${#2} header
    printf -v header '\\x%02x\\x%02x\\x%02x\\x%02x' $((size >> 24 & 255)) $((size >> 16 & 255)) $((size >> 8 & 255)) $((size & 255))
    printf "%s$header%s" "$1" "$2" >&240
}

# Waits for a request and makes __warren_cell of it. Bash drops NUL bytes but can stop at them: so the header is read
# byte by byte.
__warren_receive() {
    __warren_only_here
    builtin trap '__warren_state=interrupted' INT
    local LC_ALL=C IFS= request byte size=0 place value
    __warren_state='' __warren_exit=''
    for place in 0 1 2 3 4; do
        read -r -d '' -n 1 -u 240 byte || __warren_leave
        printf -v value %d "'$byte"
        ((place)) && size=$((size << 8 | (value & 255)))
    done
    read -r -N "$size" -u 240 request || __warren_leave
    __warren_parse "$request"
    __warren_count+=1
    __warren_cell="builtin trap - INT; { __warren_state=started; ${__warren_options:+set -$__warren_options; }$__warren_code"
    __warren_cell+=$'\n\n}; { __warren_finish "$?" "$-"; } 2>/dev/null'
    [[ $__warren_state == interrupted ]] && __warren_cell=':'
    return 0
}

# A subshell that gets SIGINT before it has begun comes back to cell.sh, too. It must not.
__warren_only_here() {
    [[ $BASHPID == "$$" ]] && return
    builtin trap - EXIT
    builtin exit 130
}

# The last command of a cell that was not cut short.
__warren_finish() {
    __warren_state=finished __warren_last=$1
    __warren_keep_options "$2"
}

# Options that would disturb us are set in cells only.
__warren_keep_options() {
    __warren_options=${2-}
    local option
    for option in e u x v; do
        [[ $1 == *$option* ]] && __warren_options+=$option
    done
    set +euxv
}

__warren_report() {
    __warren_only_here
    [[ $__warren_state == finished || $__warren_restarted ]] || __warren_keep_options "$-"
    builtin trap ':' INT
    local name=ExitCode value=$1 trace='' status=$1
    case $__warren_state in
        finished) value=$__warren_last ;;
        '')  # it never began: bash could not parse it
            name=SyntaxError
            trace=$("$BASH" --norc -O extglob -n <<<"$__warren_code" 2>&1 240<&-)
            value=${trace%%$'\n'*} value=${value#*: } ;;
        *)
            if [[ $__warren_exit && $__warren_state$__warren_exit != restarted130 ]]; then
                value=$__warren_exit
            elif [[ $__warren_state == interrupted || $status == 130 ]]; then
                name=Interrupted value='The cell was interrupted.'
            fi ;;
    esac
    __warren_restore_environment
    local error=null
    if [[ $value != 0 ]]; then
        __warren_quote "$value"; value=$__warren_quoted
        __warren_quote "$trace"
        error="{\"name\": \"$name\", \"value\": \"$value\", \"traceback\": \"$__warren_quoted\"}"
    fi
    __warren_code='' __warren_cell=':'
    __warren_send x "{\"execution_count\": $__warren_count, \"error\": $error}"
}

# Ends the cell; the shell goes on. In a subshell, the subshell.
exit() {
    local status=${1-$?}
    [[ $BASHPID == "$$" && $__warren_state == started ]] || builtin exit "$@"
    __warren_exit=$status
    __warren_run_exit_trap
    { : "${__warren_nothing:?}"; } 2>/dev/null
}

# The trap EXIT is ours, see __warren_restart; that of the user is kept beside it.
trap() {
    builtin trap "$@" || return
    [[ $BASHPID == "$$" ]] || return 0
    local now
    now=$(builtin trap -p EXIT)
    [[ $now == *__warren_restart* ]] && return
    __warren_exit_trap=${now#trap -- }
    builtin trap '__warren_restart "$?"' EXIT
}

__warren_run_exit_trap() {
    [[ $__warren_exit_trap ]] || return 0
    eval "set -- $__warren_exit_trap"
    __warren_exit_trap=''
    eval "$1"
}

# What ends the shell itself in the middle of a cell, as `set -e` and quotes without end do, ends the cell: a new shell goes on in this
# process with the same variables, functions, aliases and options. Only the list of background jobs is lost.
__warren_restart() {
    [[ $BASHPID == "$$" && $__warren_cell != : ]] || return 0
    __warren_keep_options "$-"
    __warren_exit=$1
    [[ $__warren_state == started ]] && __warren_state=restarted
    __warren_run_exit_trap
    # While a cell runs bash keeps the socket in a place that it closes in other programs. It copies that property, but
    # never to descriptor 0.
    for __warren_text in /proc/$$/fd/[1-9][0-9]*; do
        [[ -S $__warren_text && $(<"${__warren_text/fd/fdinfo}") =~ flags:[[:space:]]*(0[0-7]+) ]] || continue
        ((BASH_REMATCH[1] & 02000000)) && eval "exec 0<&${__warren_text##*/} 240<&0"
    done
    exec 241>&2 242<<<"$(__warren_dump)"
    __warren_folder=$__warren_folder __warren_restarted=yes exec "$BASH" --noprofile --noediting \
        --rcfile "$__warren_folder/functions.sh" -i <"$__warren_folder/cell.sh" 2>/dev/null
}
builtin trap '__warren_restart "$?"' EXIT

__warren_dump() {
    declare -p
    declare -f
    shopt -p
    alias -p
    set +o
    builtin trap -p
}

__warren_leave() {
    __warren_state=''
    builtin exit 0
}

# Takes the strings of a request, {"code": "…", "env": {"NAME": "…"}}, apart. JSON has no raw control characters: 1, 2
# and 3 stand for what would get in the way.
__warren_parse() {
    local - text=$1 parts place=1 inside=''
    set -f
    text=${text//'\\'/$'\1'} text=${text//'\"'/$'\2'}
    IFS='"'
    parts=($text)
    IFS=
    while ((place + 2 < ${#parts[@]})); do
        if [[ ${parts[place + 1]} =~ ^[[:space:]]*:[[:space:]]*$ ]]; then
            __warren_unquote "${parts[place + 2]}"
            if [[ $inside == env ]]; then
                __warren_set_environment "${parts[place]}" "$__warren_text"
            elif [[ ${parts[place]} == code ]]; then
                __warren_code=$__warren_text
            fi
            [[ ${parts[place + 3]} == *'}'* ]] && inside=''
            place=$((place + 4))
        else
            [[ ${parts[place + 1]} == *'{'* ]] && inside=${parts[place]}
            place=$((place + 2))
        fi
    done
}

__warren_unquote() {
    local text=$1 pieces piece number low='' bytes backslash='\'
    local -a known
    if [[ $text == *'\'* ]]; then
        text=${text//'\n'/$'\n'} text=${text//'\t'/$'\t'} text=${text//'\r'/$'\r'}
        text=${text//'\b'/$'\b'} text=${text//'\f'/$'\f'} text=${text//'\/'//}
        text=${text//'\u'/$'\3'}
        IFS=$'\3'
        pieces=($text)
        IFS=
        text=${pieces[0]-}
        for piece in "${pieces[@]:1}"; do
            number=$((16#${piece:0:4}))
            if ((number >= 0xD800 && number < 0xDC00)); then
                low=$number
            else
                [[ $low ]] && number=$((0x10000 + ((low - 0xD800) << 10) + number - 0xDC00)) low=''
                [[ ${known[number]-} ]] || { __warren_utf8 "$number"; known[number]=$bytes; }
                text+=${known[number]}${piece:4}
            fi
        done
    fi
    text=${text//$'\2'/'"'}
    __warren_text=${text//$'\1'/"$backslash"}
}

# The bytes of a character; NUL, which no variable can hold, is left out.
__warren_utf8() {
    local format=''
    if (($1 < 0x80)); then
        printf -v format '\\x%02x' "$1"
    elif (($1 < 0x800)); then
        printf -v format '\\x%02x\\x%02x' $(($1 >> 6 | 0xC0)) $(($1 & 63 | 128))
    elif (($1 < 0x10000)); then
        printf -v format '\\x%02x\\x%02x\\x%02x' $(($1 >> 12 | 0xE0)) $(($1 >> 6 & 63 | 128)) $(($1 & 63 | 128))
    else
        printf -v format '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 >> 18 | 0xF0)) $(($1 >> 12 & 63 | 128)) $(($1 >> 6 & 63 | 128)) $(($1 & 63 | 128))
    fi
    printf -v bytes "$format"
}

__warren_quote() {
    local LC_ALL=C text=$1 backslash='\' code character
    text=${text//"$backslash"/"$backslash$backslash"} text=${text//'"'/"$backslash\""}
    text=${text//$'\n'/"${backslash}n"} text=${text//$'\t'/"${backslash}t"}
    __warren_quoted=${text//[$'\1'-$'\37']/?}
}

__warren_set_environment() {
    [[ $1 =~ ^[A-Za-z_][A-Za-z_0-9]*$ ]] || return 0
    local -n variable=$1
    local attributes=${!1+${variable@a}}
    if [[ -z ${!1+set} ]]; then
        __warren_before[$1]=unset
    elif [[ $attributes == *x* ]]; then
        __warren_before[$1]=export:${!1}
    else
        __warren_before[$1]=plain:${!1}
    fi
    export "$1=$2"
}

__warren_restore_environment() {
    local name before
    for name in "${!__warren_before[@]}"; do
        before=${__warren_before[$name]}
        case $before in
            unset) unset -v "$name" ;;
            export:*) export "$name=${before#*:}" ;;
            *) export -n "$name=${before#*:}" ;;
        esac
    done
    __warren_before=()
}

if [[ ${__warren_restarted-} ]]; then
    IFS= read -r -d '' __warren_text <&242
    eval "$__warren_text" 2>/dev/null
    exec 242<&-
    __warren_restarted=yes
    __warren_report "$__warren_exit"
    __warren_restarted=''
else
    __warren_send h "{\"version\": \"${BASH_VERSION%%[!0-9.]*}\"}"
fi
