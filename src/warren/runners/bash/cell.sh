{ __warren_receive; } 2>/dev/null
. "$__warren_folder/run.sh" 240<&- </dev/null
{ __warren_report "$?"; exec <"$__warren_folder/cell.sh"; } 2>/dev/null
