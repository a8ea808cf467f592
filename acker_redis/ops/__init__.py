"""Run an acker: the rotator, and the tools of the person on call."""
