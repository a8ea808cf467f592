# Two images: `rotator`, which holds `acker-redis`, and `spark`, which holds Spark, its Java and the applications besides.
# Both run as a user without rights. A rotator rotates every app of its server, or those that ACKER_APPS names; a mounted file with
# the URL goes before ACKER_REDIS_URL: ACKER_REDIS_URL_FILE=/run/secrets/url
FROM python:3.12.8-slim-bookworm AS rotator
RUN useradd --system --uid 10001 acker
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE constraints.txt ./
COPY acker_redis acker_redis
COPY lua lua
RUN pip install --no-cache-dir -c constraints.txt '.[metrics]'
WORKDIR /app
USER acker
ENV ACKER_REDIS_URL=redis://redis:6379/0
STOPSIGNAL SIGTERM
CMD ["acker-redis", "rotator"]

FROM rotator AS spark
USER root
RUN cd /src && pip install --no-cache-dir -c constraints.txt '.[spark,demo]' \
    && python -c 'from acker_redis.spark import prepare_environment; prepare_environment()' \
    && mkdir /data && chown acker /data
COPY spark spark
ENV PYTHONPATH=/app
USER acker
CMD ["python", "-m", "spark.applications.word_count", "--help"]
