"""The HTTP/1.1 client that coordinators use to reach workers, and workers to reach coordinators.

`client` sends a request and reads the response; it takes connections from `pool`, which opens and keeps them.
`connection` is one connection and its parser. `headers` decides which headers pass from one side to the other. A
general client would parse and copy more than a proxy needs: this one exists because a request through a coordinator
should cost little more than a direct one.
"""
