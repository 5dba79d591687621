r"""Generates shell lines that try to run `curl` without being seen to: a grammar of disguises, put into each other.

The tables have one production to a line; ⏎ and ⇥ stand for a new line and a tab. Which of the lines really run it, a
real bash decides.
"""

import random
import shlex

EMPTY = r"""
'' "" \⏎ $'' $"" `` $() $(:) ${x} $x $@ $* ${x:-} ${x-} ${@} $(true) `:` ${x+y} "$x" "$@" ${@:1} ${x#y} $! ${!x} $[]
${x[@]} ${x^^}
"""
# Other ways to write a letter; those with a space in them are kept apart by ¦.
LETTERS = {
    "c": r"""\c¦'c'¦"c"¦$'c'¦$'\x63'¦$'\143'¦$'\u0063'¦$"c"¦[c]¦{c,}¦${y:-c}¦$(echo c)¦`echo c`¦${c-c}¦$'\cc'""",
    "l": r"""\l¦'l'¦"l"¦$'l'¦$'\x6c'¦?¦*¦[l]¦[k-m]¦{l,x}¦${y:-l}¦@(l)¦$'l'""¦$(printf l)¦"${y:-l}" """,
}
WHOLE = r"""
$HERE/curl ../stub/curl $HERE//curl $HERE/./curl ${HERE}/cu?l ~+/../stub/curl $HERE/../stub/curl {curl,-s} $HERE/{curl,}
${z:=curl} $'curl' $"curl"
"""
HIDDEN = "a[$(curl)] a[`curl`] x[$(curl)0] a[0$(curl)] a[1]+a[$(curl)] a[$(curl;echo$IFS'0')]"
# What starts the command behind it.
LAUNCHERS = r"""
env
env -
env -i HERE=$HERE PATH=$PATH MARK=$MARK
env A=1
env -u A
env --
env - PATH=$PATH MARK=$MARK
env -S
env -v
env -C .
env --chdir=.
env -uA
env 'a b=c'
env =x
env ''=x
env a-b=1
nice
nice -n 3
nice -3
nice -n3
nice --adjustment=1
nohup
setsid
setsid -w
timeout 9
timeout -k 1 9
timeout --preserve-status 9
timeout -s9 9
stdbuf -oL
stdbuf -o L
choom -n 0
choom -n 0 --
chrt -o 0
chrt --other 0
ionice
ionice -c 3
ionice -c3
taskset 1
taskset -c 0
setarch -R
linux64
linux32
uname26
i386
setpriv
setpriv --no-new-privs
prlimit --core=0
prlimit
unshare
unshare -U
flock f
flock -n f
flock -o f
flock 9 9>f
xargs -a /dev/null
xargs
time
time -p
time --
!
command
command --
command -p
builtin command
exec
exec -a x
exec -c -a x
exec -l
exec --
coproc
busybox
busybox env
runcon
sg root
find . -maxdepth 0 -exec
find -maxdepth 0 -execdir
watch -n 9
uclampset
uclampset -m 1
chroot /
su -c
script -qc
script -q -e -c
cpulimit -l 9 --
eval
eval --
nsenter
run-parts
then
else
do
-
--
\time
\command
'env'
\exec
e""nv
/usr/bin/env
/bin/nice
./../stub/env
trap
hash -p $HERE/curl curl;
dbus-run-session --
ssh-agent
runuser -u root --
setsid -f
capsh --
capsh == --
perl -e 'exec@ARGV'
start-stop-daemon -S -x
logsave f
strace -f
split
"""
# What runs a line as a shell would.
SHELLS = r"""
bash -c «QUOTED»
sh -c «QUOTED»
bash -ec «QUOTED»
bash -c -- «QUOTED»
eval «QUOTED»
bash -o pipefail -c «QUOTED»
bash +x -c «QUOTED»
bash --norc -c «QUOTED»
bash <<< «QUOTED»
bash <<'E'⏎«LINE»⏎E
bash -s <<E⏎«LINE»⏎E
bash <<-'E'⏎«LINE»⏎⇥E⏎
trap «QUOTED» EXIT
trap -- «QUOTED» EXIT
trap «QUOTED» DEBUG; true
trap «QUOTED» RETURN ERR; false
env bash -c «QUOTED»
env - PATH=$PATH MARK=$MARK bash -c «QUOTED»
echo x | xargs -I@ bash -c «QUOTED»
bash -c 'eval "$1"' _ «QUOTED»
bash -c '$0' «QUOTED»
bash -O extglob -c «QUOTED»
bash -i -c «QUOTED»
bash -xc «QUOTED»
bash -l -c «QUOTED»
echo «QUOTED» > f; . ./f
echo «QUOTED» | bash
bash <(echo «QUOTED»)
source /dev/stdin <<< «QUOTED»
x=«QUOTED»; eval "$x"
x=«QUOTED»; bash -c "$x"
x=«QUOTED» bash -c 'eval "$x"'
printf %s «QUOTED» > f; bash f
env x=«QUOTED» bash -c 'eval $x'
find . -maxdepth 0 -exec bash -c «QUOTED» ';'
nice bash -c «QUOTED»
bash -c «QUOTED» bash
bash --init-file /dev/null -c «QUOTED»
bash --rcfile f -c «QUOTED»
dash -c «QUOTED»
exec bash -c «QUOTED»
command eval «QUOTED»
builtin eval «QUOTED»
eval eval «TWICE»
bash -c "$(cat <<'E'⏎«LINE»⏎E⏎)"
PS4='$(eval «LINE»)' bash -xc true
bash -p -c «QUOTED»
cat <<E | bash⏎«LINE»⏎E
bash /dev/stdin <<'E'⏎«LINE»⏎E
bash 3<<'E' <&3⏎«LINE»⏎E
bash <&0 <<< «QUOTED»
"""
# Ways over a variable, an option, a function or a table of the shell.
VARIABLES = r"""
BASH_CMDS[«NAME»]=$HERE/curl; «NAME»
declare -A BASH_CMDS=([«NAME»]=$HERE/curl); «NAME»
BASH_CMDS=([«NAME»]=$HERE/curl); «NAME»
BASH_CMDS+=([«NAME»]=$HERE/curl); «NAME»
read 'BASH_CMDS[«NAME»]' <<< $HERE/curl; «NAME»
printf -v 'BASH_CMDS[«NAME»]' %s $HERE/curl; «NAME»
printf -vBASH_CMDS[«NAME»] %s $HERE/curl; «NAME»
hash -p $HERE/curl «NAME»; «NAME»
hash -lp $HERE/curl «NAME»; «NAME»
shopt -s expand_aliases⏎BASH_ALIASES[«NAME»]=curl⏎«NAME»
shopt -s expand_aliases⏎alias «NAME»=curl⏎«NAME»
shopt -s expand_aliases⏎read 'BASH_ALIASES[«NAME»]' <<< curl⏎eval «NAME»
env 'BASH_FUNC_«NAME»%%=() { curl; }' bash -c «NAME»
env BASH_FUNC_«NAME»%%='() { curl⏎}' bash -c «NAME»
env -i PATH=$PATH MARK=$MARK 'BASH_FUNC_«NAME»%%=() { curl; }' bash -c «NAME»
«NAME»() { curl; }; export -f «NAME»; bash -c «NAME»
«NAME»() { curl; }; declare -xf «NAME»; bash -c «NAME»
PROMPT_COMMAND=curl bash --norc -i <<< true
PS1='$(curl)' bash --norc -i <<< true
PS0='$(curl)' bash --norc -i <<< true
PS2='$(curl)' bash --norc -i <<< '('
PS4='$(curl)' bash -xc true
PS4='`curl`'; set -x; true
declare PS4='$(curl)'; set -x; true
export PS4='$(curl)'; bash -xc true
env PS4='$(curl)' bash -xc true
env SHELLOPTS=xtrace PS4='$(curl)' bash -c true
set -k; bash -xc true PS4='$(curl)'
set -o keyword; bash -xc true PS4='$(curl)'
echo curl > f; set -k; bash -c true BASH_ENV=f
echo curl > f; BASH_ENV=f bash -c true
echo curl > f; export BASH_ENV=f; bash -c true
echo curl > f; env BASH_ENV=f bash -c true
echo curl > f; read BASH_ENV <<< f; export BASH_ENV; bash -c true
echo curl > f; x=BASH_ENV; export $x=f; bash -c true
echo curl > f; declare -x BASH_ENV=f; bash -c true
echo curl > f; declare -n q=BASH_ENV; q=f; export q; bash -c true
echo curl > f; x=BASH_ENV; read $x <<< f; export $x; bash -c true
echo curl > f; ENV=f bash --posix -i -c true
echo curl > f; env ENV=f sh -i <<< true
echo curl > f; : ${BASH_ENV:=f}; export BASH_ENV; bash -c true
echo curl > f; x=BASH_ENV; : ${!x:=f}; export ${!x@}; bash -c true
echo curl > f; set -a; : ${BASH_ENV:=f}; bash -c true
echo curl > f; bash --rcfile f -i -c true
echo curl > f; bash --rcfile f -i <<< true
echo curl > f; bash --init-file f -i -c :
echo curl > .bashrc; bash -i -c true
declare -n q=x; x=curl; $q
declare -n q=PS4; q='$(curl)'; set -x; :
typeset -n q=PS4; q='$(curl)'; set -x; :
f() { local -n q=PS4; q='$(curl)'; }; f; set -x; true
for PS4 in '$(curl)'; do set -x; true; done
mapfile PS4 <<< '$(curl)'; set -x; :
read PS4 <<< '$(curl)'; set -x; true
read -r PS4 <<< '$(curl)'; set -x; true
read -rd '' PS4 <<< '$(curl)'; set -x; true
printf -v PS4 %s '$(curl)'; set -x; true
printf -vPS4 %s '$(curl)'; set -x; true
x=PS4; printf -v $x '$(curl)'; set -x; true
x=-v; printf $x PS4 '$(curl)'; set -x; true
getopts a PS4; x='$(curl)'; echo ${x@P}
x='$(curl)'; echo ${x@P}
x='$(curl)'; : "${x@P}"
x=('$(curl)'); echo ${x[@]@P}
x='$(curl)'; y=x; echo ${!y@P}
x='$(curl)'; set -- "$x"; echo ${1@P}
set -- '$(curl)'; echo ${@@P}
x=«HIDDEN»; echo $((x))
x=«HIDDEN»; ((x))
let x=«HIDDEN»
let «HIDDEN»
test -v «HIDDEN»
[ -v «HIDDEN» ]
[[ -v «HIDDEN» ]]
[[ «HIDDEN» -eq 0 ]]
read «HIDDEN» <<< 1
printf -v «HIDDEN» 1
unset «HIDDEN»
declare «HIDDEN»=1
declare -i x=«HIDDEN»
export «HIDDEN»=1
wait -n -p «HIDDEN»
x=«HIDDEN»; echo ${x:x}
x=«HIDDEN»; y=(1 2); echo ${y[x]}
x=«HIDDEN»; echo ${!x}
x=«HIDDEN»; echo ${HERE:x}
x=«HIDDEN»; echo $[x]
x=«HIDDEN»; for ((;x;)); do break; done
x=«HIDDEN»; [[ $x -gt 0 ]]
x=«HIDDEN»; y[$x]=1
x=«HIDDEN»; read a[$x] <<< 1
x=«HIDDEN»; unset y[$x]
x=«HIDDEN»; exit $((x))
x=«HIDDEN»; test $x -eq 1
x=«HIDDEN»; printf %d $x
x=«HIDDEN»; printf -v $x 1
x=«HIDDEN»; return $((x))
x=«HIDDEN»; declare -i y=x
x=«HIDDEN»; declare -i y; y=$x
x=«HIDDEN»; declare -n y=$x; echo $y
declare -n y=«HIDDEN»; echo $y
x=«HIDDEN»; ulimit -c $((x))
x=«HIDDEN»; shift $((x))
x=«HIDDEN»; a=([x]=1)
a=([«BARE»]=1)
mapfile -C curl -c 1 x <<< y
mapfile -c1 -Ccurl x <<< y
readarray -C 'curl;' -c 1 x <<< y
compgen -C curl
compgen -W '$(curl)'
complete -C curl x
command_not_found_handle() { curl; }; nope
coproc curl; wait
coproc X { curl; }; wait
select x in 1; do curl; break; done <<< 1
enable -f /x curl
fc -e curl
bind -x '"a":curl'
exec {x}<<< a; curl
trap curl DEBUG; :
trap 'curl' ERR; false
trap curl EXIT
trap curl 0
trap curl USR1; kill -USR1 $$
kill -l; curl
x=(curl); ${x[0]}
x=(curl); ${x}
set -- curl; $1
set -- curl; $@
set curl; "$@"
x=curl; $x
x=cu; y=rl; $x$y
x=curl; ${x}
y=x x=curl; ${!y}
x=xcurl; ${x#x}
x=curl.; ${x%.}
x=CURL; ${x,,}
x=kurl; ${x/k/c}
x=acurlb; ${x:1:4}
IFS=x; x=curlxa; $x
$(echo curl)
`echo curl`
$(<f)
echo curl>f; $(<f)
eval "$(echo curl)"
echo curl | { read x; $x; }
while read x; do $x; done <<< curl
x=$'cu\x72l'; $x
${0/*/curl}
${_:+curl}
${HERE:+curl}
${nope:-curl}
${nope:=curl}
${nope-curl}
a=1 ${nope-curl}
exec -a x $HERE/curl
> f curl
2>&1 curl
<<< a curl
{x}>f curl
&> f curl
>&2 curl
>|f curl
<>f curl
3<&0 curl
>f curl >g
a=1 >f curl
>f a=1 curl
a=1 b=2 <f curl
a+=1 curl
a[0]=1 curl
a[0]+=1 curl
a=(1 2) curl
a= curl
a=`:` curl
a=$(:) curl
a='b c' curl
a=b\ c curl
1a=b; curl
time a=1 curl
! a=1 curl
if a=1 curl; then :; fi
"""
# Ways to make `ls` stand for the program of that name in $EVIL.
LOOKUPS = r"""
«VARIABLE»=$EVIL; ls
PATH=$EVIL ls
export «VARIABLE»=$EVIL; ls
declare -n q=«VARIABLE»; q=$EVIL; ls
typeset -n q=«VARIABLE»; q=$EVIL; ls
f() { local -n q=PATH; q=$EVIL; ls; }; f
env PATH=$EVIL ls
declare -gn q=PATH; q=$EVIL; ls
declare -n q; q=PATH; q=$EVIL; ls
read «VARIABLE» <<< $EVIL; ls
read -r «VARIABLE» <<< $EVIL; ls
read -aPATH <<< $EVIL; ls
read -a «VARIABLE» <<< $EVIL; ls
x=PATH; read $x <<< $EVIL; ls
printf -v «VARIABLE» %s $EVIL; ls
printf -vPATH %s $EVIL; ls
x=PATH; printf -v $x %s $EVIL; ls
mapfile -t «VARIABLE» <<< $EVIL; ls
mapfile -tn1 PATH <<< $EVIL; ls
for «VARIABLE» in $EVIL; do ls; done
select «VARIABLE» in $EVIL; do ls; break; done <<< 1
x=PATH; export $x=$EVIL; ls
x=PATH; declare $x=$EVIL; ls
x=PATH; declare -g "$x=$EVIL"; ls
export 'PATH='$EVIL; ls
declare "PATH=$EVIL"; ls
eval PATH=$EVIL; ls
eval 'PATH=$EVIL'; ls
unset PATH; : ${PATH:=$EVIL}; ls
PATH=; : ${PATH:=$EVIL}; ls
x=PATH; unset PATH; : ${!x:=$EVIL}; ls
hash -p $EVIL/ls ls; ls
hash -p$EVIL/ls ls; ls
BASH_CMDS[ls]=$EVIL/ls; ls
BASH_CMDS=([ls]=$EVIL/ls); ls
cd $EVIL; ./ls
$EVIL/ls
../stub/evil/ls
ls() { $EVIL/ls; }; ls
alias ls=$EVIL/ls⏎ls
shopt -s expand_aliases⏎alias ls=$EVIL/ls⏎ls
PATH=$EVIL:$PATH; ls
PATH+=:$EVIL; PATH=${PATH##*:}; ls
declare PATH+=:$EVIL; ls
PATH[0]=$EVIL; ls
declare -a PATH=($EVIL); ls
env -S "PATH=$EVIL ls"
env -i PATH=$EVIL MARK=$MARK bash -c ls
env - PATH=$EVIL MARK=$MARK ls
set -k; ls PATH=$EVIL
set -k; bash -c ls PATH=$EVIL
exec env PATH=$EVIL ls
command -p ls
getopts a PATH -a; ls
builtin read PATH <<< $EVIL; ls
command read PATH <<< $EVIL; ls
builtin export PATH=$EVIL; ls
command declare PATH=$EVIL; ls
readonly PATH=$EVIL; ls
while read PATH; do ls; done <<< $EVIL
IFS=: read x PATH <<< :$EVIL; ls
(( PATH = 1 )); mkdir 1; ls
coproc PATH { :; }; ls
time PATH=$EVIL ls
! PATH=$EVIL ls
declare -x PATH=$EVIL; ls
cp $EVIL/ls cat; PATH=. cat
ln -s $EVIL/ls true; ./true
enable -n ls; ls
BASH_ENV=$EVIL/ls bash -c true
ls() { PATH=$EVIL; command ls; }; ls
let PATH=1; ls
x=-n; declare $x q=PATH; q=$EVIL; ls
"""
# Lines with the command somewhere in them.
FRAMES = r"""
«INNER»
true; «INNER»
true && «INNER»
false || «INNER»
true | «INNER»
(«INNER»⏎)
{ «INNER»⏎}
! «INNER»
true⏎«INNER»
# x⏎«INNER»
if true; then «INNER»⏎fi
if «INNER»⏎then :; fi
for i in 1; do «INNER»⏎done
while «INNER»⏎do break; done
until «INNER»⏎do break; done
case x in x) «INNER»⏎;; esac
case x in (x) «INNER»⏎esac
f() { «INNER»⏎}; f
function f { «INNER»⏎}; f
f() ( «INNER»⏎); f
function f() { «INNER»⏎}⏎f
echo $(«INNER»⏎)
echo "$(«INNER»⏎)"
x=$(«INNER»⏎)
cat <(«INNER»⏎)
echo > >(«INNER»⏎)
echo ${x:-$(«INNER»⏎)}
echo "${x:-$(«INNER»⏎)}"
echo $((1+$(«INNER»⏎)0))
[[ $(«INNER»⏎) ]]
[ $(«INNER»⏎) ]
a=($(«INNER»⏎))
a[$(«INNER»⏎)0]=1
cat <<E⏎$(«INNER»⏎)⏎E
cat <<E⏎`«INNER»`⏎E
echo `«INNER»`
echo "`«INNER»`"
echo a`«INNER»`b
coproc { «INNER»⏎}; wait
time { «INNER»⏎}
«INNER» &⏎wait
for ((i=0;i<1;i++)); do «INNER»⏎done
for ((i=0;i<1;i++)) { «INNER»⏎}
for i in 1; { «INNER»⏎}
select i in 1; do «INNER»⏎break; done <<< 1
echo a#b; «INNER»
echo \# ; «INNER»
echo '#' ; «INNER»
echo ${#x} ; «INNER»
echo $# ; «INNER»
cat <<'A' <<B⏎x⏎A⏎y⏎B⏎«INNER»
cat <<\E⏎'⏎E⏎«INNER»
cat <<'E F'⏎"⏎E F⏎«INNER»
cat <<-E⏎⇥'⏎⇥E⏎«INNER»
cat <<E""⏎'⏎E⏎«INNER»
cat << 'E'⏎$(⏎E⏎«INNER»
cat <<$E⏎'⏎$E⏎«INNER»
cat <<E;«INNER»⏎x⏎E
echo <<< a ; «INNER»
[[ a =~ (a) ]]; «INNER»
[[ x == @(x|y) ]]; «INNER»
shopt -s extglob⏎echo !(x)⏎«INNER»
((1)); «INNER»
echo $((1 << 2)); «INNER»
((x = 1 << 2))⏎«INNER»
echo ${x/'a'/"b"}; «INNER»
echo ${x:-'}'}; «INNER»
echo "${x:-'}"; «INNER»
echo ${x%%'}'*}; «INNER»
echo $'a\'b' ; «INNER»
echo "a\"b" ; «INNER»
echo a\;b ; «INNER»
true\⏎; «INNER»
tr\⏎ue; «INNER»
echo {a..c} ; «INNER»
declare -a x=($(«INNER»⏎))
declare x=$(«INNER»⏎)
export x=`«INNER»`
local x; «INNER»
x=1 y=$(«INNER»⏎) true
echo "$(echo "$(«INNER»⏎)")"
echo ${x[$(«INNER»⏎)0]}
echo ${HERE:$(«INNER»⏎)0}
echo $[ $(«INNER»⏎)0 ]
true >$(«INNER»⏎)f
case $(«INNER»⏎) in *) ;; esac
for i in $(«INNER»⏎); do :; done
case x in $(«INNER»⏎)) ;; esac
case x in y) ;& x) «INNER»⏎;;& *) ;; esac
exec 3< <(«INNER»⏎); wait
while read x; do «INNER»⏎done <<< 1
if [ 1 ]; then :; fi; «INNER»
[[ 1 ]] && «INNER»
«INNER» || true
function x:y { «INNER»⏎}; x:y
x-y() { «INNER»⏎}; x-y
echo()(«INNER»⏎)⏎echo
ls() if true; then «INNER»⏎fi⏎ls
f() for i in 1; do «INNER»⏎done; f
"""


def generate(rng: random.Random) -> str:
    """A line that may run `curl`."""
    way = rng.random()
    if way < 0.3:
        line = _name(rng)
    elif way < 0.55:
        line = f"{_one_of(rng, LAUNCHERS)} {rng.choice(['curl', 'curl x', _name(rng), '$HERE/curl'])}"
    else:
        line = _filled(rng, _one_of(rng, VARIABLES))
    return _wrapped(rng, line)


def generate_lookup(rng: random.Random) -> str:
    """A line that an allow list with `ls` on it may take for a harmless one."""
    return _wrapped(rng, _filled(rng, _one_of(rng, LOOKUPS)))


def _wrapped(rng: random.Random, line: str) -> str:
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        table = SHELLS if rng.random() < 0.4 else FRAMES
        line = _filled(rng, _one_of(rng, table), line)
    return line


def _one_of(rng: random.Random, table: str) -> str:
    return rng.choice(table.strip("\n").split("\n")).replace("⏎", "\n").replace("⇥", "\t")


def _filled(rng: random.Random, template: str, line: str = "") -> str:
    hidden, quoted = rng.choice(HIDDEN.split()), _quoted(rng, line)
    values = {
        "NAME": rng.choice(["ls", "x", "true", "cat"]),
        "VARIABLE": rng.choice(["PATH", "PATH", "PATH", "x"]),
        "HIDDEN": shlex.quote(hidden),
        "BARE": hidden,
        "TWICE": shlex.quote(quoted),
        "QUOTED": quoted,
        "LINE": line,
        "INNER": line,
    }
    for name, value in values.items():
        template = template.replace(f"«{name}»", value)
    return template


def _name(rng: random.Random) -> str:
    """`curl`, written so that bash takes it for that, or perhaps does."""
    way = rng.random()
    if way < 0.25:
        return "curl" if way < 0.15 else rng.choice(WHOLE.split())
    pieces = ["c", "u", "r", "l"]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(EMPTY.split()).replace("⏎", "\n"))
        elif (letter := rng.choice(["c", "l"])) in pieces:
            pieces[pieces.index(letter)] = rng.choice(LETTERS[letter].strip().split("¦"))
    return "".join(pieces)


def _quoted(rng: random.Random, text: str) -> str:
    """The text as one word."""
    way = rng.random()
    if way < 0.15 and not set(text) & set('"$`\\!'):
        return f'"{text}"'
    if way < 0.35:
        return "$'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if way < 0.5 and "\n" not in text:
        return "".join(f"\\{letter}" for letter in text)
    return shlex.quote(text)
