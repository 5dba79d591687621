#!/bin/sh
# The first process of a throw-away sandbox.
exec sleep infinity
