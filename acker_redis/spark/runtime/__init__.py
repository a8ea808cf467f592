"""The Spark around a pipeline: JVM, environment, jobs, errors of workers."""
