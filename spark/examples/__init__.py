"""Eight programs of at most thirty lines that show one idea each.

`python -m spark.examples.NAME` runs one against `ACKER_REDIS_URL`. They need a Redis or Valkey and a running
`acker-redis rotator`. Each docstring has the program's output.
"""

import os

URL = os.environ.get("ACKER_REDIS_URL", "redis://127.0.0.1:6379/0")
