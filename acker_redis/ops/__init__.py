"""Run an acker: the rotator, and the tools of the person on call.

Internal: the public names are those of `acker_redis`, and `tracing`.
"""
