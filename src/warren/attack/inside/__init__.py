"""RUNS INSIDE THE SANDBOX UNDER ATTACK: copied there and started with the image's own python3, as the user.

Nothing here may import what is not in this folder or Python's own library. Each attack is a function
that returns `(verdict, evidence)`; one that cannot decide raises.
"""
