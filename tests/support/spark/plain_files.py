"""Hadoop's local files in a JVM of the tests, without a program for each file.

Hadoop starts `chmod` for each file and folder that it makes on a local disk, and `readlink` for each that it renames, because
PySpark comes without Hadoop's native library. A micro-batch starts dozens of them, which takes longer than its job. The
classes in `PlainFiles.java` do the same by Java's own calls. Spark's compiler of queries compiles them.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from acker_redis.spark.runtime.jvm import java_class

SOURCE = Path(__file__).with_name("PlainFiles.java")


def use(session: SparkSession) -> None:
    """For all that the JVM of a classic session writes from now on."""
    context = session.sparkContext
    compiler = java_class(context, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(java_class(context, "java.lang.Thread").currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    settings = context._jsc.hadoopConfiguration()
    settings.setClassLoader(compiler.getClassLoader())
    settings.set("fs.AbstractFileSystem.file.impl", "tests.PlainContext")
    of_files = java_class(context, "org.apache.hadoop.conf.Configuration")(settings)
    of_files.set("fs.file.impl", "tests.PlainFiles")
    systems = java_class(context, "org.apache.hadoop.fs.FileSystem")
    systems.closeAll()
    systems.get(java_class(context, "java.net.URI")("file:///"), of_files)  # Hadoop keeps it for all who ask for one
