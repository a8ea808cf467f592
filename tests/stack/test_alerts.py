"""The rules and the dashboard of stack/ on a Prometheus: they find apps that are sick, and no others."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.ops.metrics import MetricsServer
from acker_redis.store import topology_counts
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.store.run_ends import End
from acker_redis.store.topology_counts import Counts
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server, free_port
from tests.ops.test_metrics import scrape
from tests.support.servers import required

ROOT = Path(__file__).resolve().parents[2]
STACK = ROOT / "stack"
RULES = (STACK / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((STACK / "grafana" / "dashboards" / "acker.json").read_text(encoding="utf-8"))
PANELS = {
    f"{panel['title']}, {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
ON_CALL = (ROOT / "docs" / "operate" / "on-call.md").read_text(encoding="utf-8")


def as_asked(expr: str, apps: str = ".+") -> str:
    """A panel's expression as Grafana sends it."""
    return expr.replace("$__rate_interval", "1m").replace("$app", apps)


class Prometheus:
    """A Prometheus of the stack's own configuration, which asks other targets, and more often."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        text = (STACK / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        for number, target in enumerate(targets, 1):
            text = _replaced(text, f"rotator-{number}:9400", target)
        for kind in ("scrape", "evaluation"):
            text = _replaced(text, f"{kind}_interval: 15s", f"{kind}_interval: 1s")
        (folder / "prometheus.yml").write_text(text, encoding="utf-8")
        (folder / "alerts.yml").write_text(RULES, encoding="utf-8")
        self.url = f"http://127.0.0.1:{free_port()}"
        program = required("prometheus", "prometheus")  # skips: nothing is open yet
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except urllib.error.URLError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as exc:
            pytest.fail(f"{parameters}: {exc.read().decode()}")
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, expr: str) -> list[dict[str, str]]:
        """The labels of what an expression gives now."""
        return [series["metric"] for series in self.get("query", query=expr)["result"]]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=120)
        self._log.close()


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    started: list[Prometheus] = []

    def start(*targets: str) -> Prometheus:
        started.append(Prometheus(tmp_path, list(targets)))
        wait_until(started[-1].is_ready, "Prometheus is ready", 60)
        return started[-1]

    yield start
    for server in started:
        server.stop()


class Trouble:
    """An app that is well, one that hangs, one that nobody rotates, and one that is held."""

    def __init__(self, url: str, open_acker: Callable[..., Acker]) -> None:
        quick = {"message_timeout_secs": 2, "shards": 1}  # a tick each second
        self.well = open_acker(url, app="well", shards=1, message_timeout_secs=60)
        self.hangs = open_acker(url, app="hangs", **quick)
        self.idle = open_acker(url, app="idle", **quick)
        self.held = open_acker(url, app="held", shards=1, message_timeout_secs=60)
        self.held.admin.pause(reason="the store is moved")
        app_of(self.hangs).note_end(End("run", 0, "failed", error="OSError: no such folder"), lane=0)
        self.idle.init_many(range(1, 101), range(1, 101), 0)
        self._slow: deque[tuple[float, Any]] = deque()
        self._next = 1

    def goes_on(self) -> None:
        """Roots begin: of the app that hangs some are acked late, some fail, and most time out."""
        roots = np.arange(self._next, self._next + 100)
        self._next += 100
        self._count_topologies()
        self.well.init_many(roots, roots, 0)
        self.well.ack_many(roots, roots)
        self.well.confirm_batches(self.well.poll_batches())
        self.hangs.init_many(roots, roots, 0)
        self.hangs.fail_many(roots[:10])
        self.hangs.ack(int(roots[0]), 1)
        self.hangs.ack(-int(roots[0]), 1)
        self._slow.append((time.monotonic(), roots[10:20]))
        while self._slow and time.monotonic() - self._slow[0][0] > 1.3:
            late = self._slow.popleft()[1]
            self.hangs.ack_many(late, late)
        self.hangs.dead_letters.add([DeadLetter(self._next, "run", 5, "failed")])
        self._read_kafka()

    def _read_kafka(self) -> None:
        """Two groups: one is well; the other has a partition that grows behind an open record, and one without a driver."""
        now_ms, end = self.well.dead_letters.now_ms(), 1000 + self._next
        numbers = {"earliest": 0, "done_beyond": 0, "oldest_open": None, "letters_not_copied": 0}
        well = {**numbers, "end": end, "committed": end, "open": 0, "time_ms": now_ms}
        stuck = {**numbers, "end": end, "committed": 7, "open": 1, "done_beyond": end - 8, "time_ms": now_ms}
        silent = {**numbers, "end": 9, "committed": 9, "open": 0, "time_ms": now_ms - 3_600_000}
        for acker, of in ((self.well, {"t/0": well}), (self.hangs, {"t/0": stuck, "t/1": silent})):
            KafkaProgress(app_of(acker).client, acker.config.app, "billing").write(of)

    def _count_topologies(self) -> None:
        """A topology that is well; one whose messages fail; and one that holds no lane."""
        for acker, wrong, lane in ((self.well, 0, None), (self.hangs, self._next, 0)):
            names = ("emitted", "executed", "failed", "timed_out")
            bolt = {**{name: {"default": wrong} for name in names}, "errors": wrong}
            for topology, of in (("Words", lane), ("Untracked", None)):
                counts = Counts(topology, "run", "running", 5, lane=of, components={"bolt": bolt})
                topology_counts.write(app_of(acker).client, acker.config.app, counts)
            keep_state(acker)


def keep_state(acker: Acker) -> None:
    """State of a bolt of a topology."""
    state = app_of(acker).topology_state("Words")
    turn = state.turn(state.open({})[0], 1)
    turn.load("count:0")
    assert turn.commit([turn.write("count:0", "one", {b"key": b"value"})]) == 0


def test_alert_of_dead_letters_says_how_each_source_runs_them_again() -> None:
    """The command can't replay the letters of a batch run that is over."""
    begin, end = RULES.index("alert: AckerDeadLetters"), RULES.index("alert: AckerManyDeadLetters")
    text = " ".join(RULES[begin:end].split())
    assert "streams and topologies emit their messages again after `acker-redis dead-letters replay" in text
    assert "run_tracked(..., only_dead_letters=...)" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_config_and_rules(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [required("promtool", "prometheus"), *arguments],
        cwd=STACK / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done


def test_panels_and_alerts_detect_their_trouble(
    start_server: Callable[..., Server],
    open_acker: Callable[..., Acker],
    start_process: Callable[..., Any],
    start_prometheus: Callable[..., Prometheus],
) -> None:
    """Two targets as in the stack: a rotator of all apps but one, and, as nobody rotates that one, the metrics alone."""
    server = start_server()
    trouble = Trouble(server.url, open_acker)
    apps = ("--app", "well", "--app", "hangs", "--app", "held")
    rotator = start_process("rotator", "--redis", server.url, *apps, "--metrics", "0")
    wait_until(lambda: "serving metrics url=http://127.0.0.1:" in rotator.log(), "the metrics are served")
    (address,) = re.findall(r"http://(127\.0\.0\.1:\d+)/metrics", rotator.log())
    with MetricsServer(server.url, [], "127.0.0.1", 0) as all_apps:
        prometheus = start_prometheus(address, f"127.0.0.1:{all_apps.port}")
        (group,) = prometheus.get("rules")["groups"]
        alerts = {rule["name"]: rule["query"] for rule in group["rules"]}
        wanted = {**alerts, **{name: as_asked(expr) for name, expr in PANELS.items()}}
        wanted["none waits"] = 'min_over_time(acker_outcomes_waiting{app="well"}[10m]) == 0'  # seen between two polls
        later = {"AckerServerDown", "AckerNotScraped"}
        seen: dict[str, list[dict[str, str]]] = {}

        def all_found() -> bool:
            trouble.goes_on()
            for name in wanted.keys() - later - seen.keys():
                if series := prometheus.series(wanted[name]):
                    seen[name] = series
            return seen.keys() >= wanted.keys() - later

        try:
            wait_until(all_found, "every panel shows something, and every alert finds its trouble", 180)
        except TimeoutError:
            pytest.fail(f"nothing was found by {wanted.keys() - later - seen.keys()}")
        for name, expr in alerts.items():
            series = prometheus.series(expr)
            of = Counter(tuple(map(labels.get, ("app", "state", "topology", "component"))) for labels in series)
            assert "well" not in {app for app, *_ in of}, (name, of)
            assert set(of.values()) <= {1}, f"{name}: once for each target: {of}"
        for expr in PANELS.values():  # one by one: a scrape that a busy machine let take too long has no figures

            def is_of_its_apps(expr: str = expr) -> bool:
                both = {labels["app"] for labels in prometheus.series(as_asked(expr, "hangs|held")) if "app" in labels}
                return ("hangs" in both and both <= {"hangs", "held"}) == ("$app" in expr)

            wait_until(is_of_its_apps, f"the panel shows the chosen apps: {expr}")
        states = [labels["state"] for labels in prometheus.series(as_asked(PANELS["Apps now, A"]))]
        assert "ok" not in states[:-1] and states[-1] == "ok", states  # who is sick comes first
        latencies = prometheus.series(as_asked(PANELS["Until acked: p50, p95, p99, A"]))
        assert {labels["app"] for labels in latencies} == {"well", "hangs"}  # no empty rows of those that ack nothing
        shown: dict[str, str] = {}

        def all_shown() -> bool:
            trouble.goes_on()
            for alert in prometheus.get("alerts")["alerts"]:
                if (
                    alert["labels"]["alertname"] not in later or alert["state"] == "firing"
                ):  # pending after a late scrape
                    shown[alert["labels"]["alertname"]] = " ".join(alert["annotations"].values())
            return shown.keys() >= alerts.keys() - later

        wait_until(all_shown, "Prometheus itself raises the alerts")
        assert not later & shown.keys()
        for text in shown.values():
            assert not re.search(r"\{\{|error expanding|<no value>", text), text

        server.kill()
        wait_until(lambda: len(prometheus.series(alerts["AckerServerDown"])) == 2, "the server is missed")
    rotator.end()
    wait_until(lambda: bool(prometheus.series(alerts["AckerNotScraped"])), "the rotators are missed")


def test_rules_and_dashboard_use_only_exported_metrics(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    acker.init(1, 0, 0)
    split = {name: {"default": 1} for name in topology_counts.COUNTED}
    topology_counts.write(
        app_of(acker).client, "orders", Counts("Words", "run", "ended", 0, 7, components={"split": split})
    )
    keep_state(acker)
    numbers = {"earliest": 0, "end": 2, "committed": 1, "done_beyond": 0, "open": 1, "oldest_open": 1}
    progress = KafkaProgress(app_of(acker).client, "orders", "billing")
    progress.write({"t/0": {**numbers, "letters_not_copied": 0, "time_ms": 0}})
    with MetricsServer(url, [], "127.0.0.1", 0) as server:
        served = {key[0] for key in scrape(server.port)}
    for text in (RULES, json.dumps(DASHBOARD)):
        named = set(re.findall(r"(?<!FCALL_RO )\backer_[a-z_]+", text))
        assert named and named <= served, named - served


def test_on_call_docs_alarms_each_have_an_alert() -> None:
    rows = re.findall(r"^\| `(\w+)`.*\|.*\|(.*)\|$", ON_CALL.split("## Metrics and alerts")[1], re.MULTILINE)
    alarms = {metric for metric, alarm in rows if not alarm.strip().startswith("for plots")}
    alerts = re.split(r"^ +- alert: ", RULES, flags=re.MULTILINE)[1:]
    named = [
        re.findall(r"docs/operate/on-call\.md, \"Metrics and alerts\",\s+row\s+`(\w+)`", alert) for alert in alerts
    ]
    assert all(len(names) == 1 for names in named), named
    assert {names[0] for names in named} == alarms
    for alert in alerts:
        assert re.search(r"severity: (critical|warning|info)\n", alert), alert
        assert "summary: " in alert and "description: " in alert, alert
        assert ";" not in alert, "sentences are not joined by semicolons"


def test_dashboard_panels_use_the_selected_datasource() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["app"]["multi"], variables["app"]["includeAll"]) == (
        "datasource", True, True,
    )  # fmt: skip
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        for holder in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    taken = {
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert len(taken) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in DASHBOARD["panels"])
    assert max(x for x, _ in taken) < 24
