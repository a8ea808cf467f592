# The rotator: the one long-running process of acker_redis. Any number of copies may run. Rotates every app of the server, or
# those that ACKER_APPS names. A mounted file with the URL goes before ACKER_REDIS_URL: ACKER_REDIS_URL_FILE=/run/secrets/url
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE constraints.txt ./
COPY acker_redis acker_redis
COPY lua lua
RUN pip install --no-cache-dir -c constraints.txt . && useradd --system acker
WORKDIR /
USER acker
ENV ACKER_REDIS_URL=redis://redis:6379/0
STOPSIGNAL SIGTERM
ENTRYPOINT ["acker-redis"]
CMD ["rotator"]
