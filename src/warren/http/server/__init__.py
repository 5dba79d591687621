"""The HTTP server: listening, TLS, connection time-outs, and checks that every request passes first."""
