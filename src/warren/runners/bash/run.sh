eval "$__warren_cell"
