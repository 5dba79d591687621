# RUNS INSIDE A SANDBOX THAT HAS NO python3: the few attacks that a shell can make with what is built into it.
# The last line is a call of one of these functions, which print the result as inside/run.py does.

say() { printf '\nwarren-attack:{"verdict": "%s", "evidence": "%s"}\n' "$1" "$2"; }
stop() { printf '\nwarren-attack:{"error": "%s"}\n' "$1"; exit; }

# status NAME WANTED: what the kernel says of this very process.
status() {
    while read -r name value; do
        [ "$name" = "$1:" ] || continue
        if [ "$value" = "$2" ]; then say contained "$1 is $value"; else say through "$1 is $value"; fi
        exit
    done < /proc/self/status
    stop "/proc/self/status has no $1"
}

capability_sets() {
    seen=0 full=
    while read -r name value; do
        case $name in
            CapInh: | CapPrm: | CapEff: | CapBnd: | CapAmb:)
                seen=$((seen + 1))
                case $value in *[!0]*) full="$full $name $value" ;; esac ;;
        esac
    done < /proc/self/status
    [ $seen = 5 ] || stop "/proc/self/status has $seen sets of capabilities"
    if [ "$full" ]; then say through "capabilities:$full"; else say contained "all five sets are empty"; fi
}

interfaces() {
    found=
    while read -r name rest; do
        case $name in Inter-* | face | lo:*) ;; *) found="$found ${name%%:*}" ;; esac
    done < /proc/net/dev || stop "/proc/net/dev cannot be read"
    if [ "$found" ]; then say through "interfaces:$found"; else say contained "only lo"; fi
}

routes() {
    found=
    while read -r name rest; do [ "$name" = Iface ] || found="$found $name"; done < /proc/net/route ||
        stop "/proc/net/route cannot be read"
    if [ "$found" ]; then say through "routes by$found"; else say contained "no route of IPv4 leads out"; fi
}

# readable PATH...: files that must say nothing.
readable() {
    found=
    for path; do
        { [ -f "$path" ] || [ -c "$path" ]; } && IFS= read -r line 2> /dev/null < "$path" && found="$found $path"
    done
    if [ "$found" ]; then say through "can be read:$found"; else say contained "$# files say nothing"; fi
}
