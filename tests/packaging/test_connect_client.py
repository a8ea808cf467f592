"""The Spark layer imports where only the client of Spark Connect is installed, which has no py4j and no JVM."""

import subprocess
import sys
from pathlib import Path

import acker_redis

ROOT = Path(__file__).resolve().parents[2]

NOT_IN_THE_CLIENT = ("py4j", "pyspark.core", "pyspark.sql.classic")
"""What pyspark-client lacks of pyspark. Without `pyspark.core`, PySpark takes itself for the client."""

PROGRAM = f"""
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(f"{{name}}.".startswith(f"{{missing}}.") for missing in {NOT_IN_THE_CLIENT}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from pyspark.util import is_remote_only
assert is_remote_only()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as exc:
        print(f"{{name}}: {{exc}}")
"""


def test_every_module_of_the_spark_layer_imports_with_the_client_alone() -> None:
    package = Path(acker_redis.__file__).parent
    modules = [
        ".".join((acker_redis.__name__, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted((package / "spark").rglob("*.py"))
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *modules], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
