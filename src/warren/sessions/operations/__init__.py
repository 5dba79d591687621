"""What can be done with sessions: a handler for each row of the table in model/api.py.

Handlers take and give plain values, so the same ones serve HTTP (`warren.http.dispatch`) and the SDK's local mode.
"""
