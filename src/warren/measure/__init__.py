"""How fast Warren is on this machine: a client, a server that is thrown away, and what is timed. For `warren bench` and
for the programs in bench/."""
