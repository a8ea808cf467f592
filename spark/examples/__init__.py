"""Eight programs of at most thirty lines, one idea each; `python -m spark.examples.NAME` runs one against `ACKER_REDIS_URL`.

They need a Redis or Valkey and `acker-redis rotator`. What each prints stands in its docstring.
"""

import os

URL = os.environ.get("ACKER_REDIS_URL", "redis://127.0.0.1:6379/0")
