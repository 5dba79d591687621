# Runs the cells of a Java context. The keeper starts it with a socket on descriptor 3 and pipes on 1 and 2.
#
# The JDK compiles Main.java in memory at each start. The opened packages let it use a descriptor that it inherits, and
# change its environment for a cell. The serial collector and the first compiler alone keep the process small.
command -v jshell >/dev/null && command -v java >/dev/null || { echo "jshell: not found" >&2; exit 127; }
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto \
    --add-opens java.base/java.io=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED \
    --add-opens java.base/java.util=ALL-UNNAMED "${0%/*}/Main.java"
