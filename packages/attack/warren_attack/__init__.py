"""Attacks on a sandbox from inside, and verdicts on what held: on any sandbox by a command that runs a shell in it, and
on an installation of Warren (`warren_attack.warren`), whose host and API are looked at as well."""
