"""Operation of an acker: the rotator, and the tools for the person on call.

Internal: the public names are those of `acker_redis`, and `tracing`.
"""
