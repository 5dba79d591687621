"""RUNS INSIDE THE SANDBOX UNDER ATTACK: copied there and started with the image's own python3, as the user.

A module here may import only this folder and Python's own library. Each attack is a function that returns
`(verdict, evidence)`; one that cannot decide raises.
"""
