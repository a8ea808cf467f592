"""`docker-compose.yml`: checks that need no container engine. `tests/*/test_stack.py` run its services."""

import re
from typing import Any

import pytest
import yaml

from stack import users
from stack.compose import FILE, selected, services

ROOT = FILE.parent
GIVEN: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = services()
each = pytest.mark.parametrize("name", SERVICES)


@each
def test_images_are_pinned_to_a_version_or_built_here(name: str) -> None:
    given = GIVEN["services"][name]
    if "build" in given:
        components = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        assert given["build"]["target"] in components
    else:
        assert re.search(r":v?\d+\.\d+\.\d+", given["image"])


def test_dockerfile_base_image_is_pinned_to_a_version() -> None:
    (base,) = re.findall(r"^FROM (\S+:\S+) AS", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.search(r":\d+\.\d+\.\d+", base)


@each
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    given = GIVEN["services"][name]
    assert given["read_only"] and given["cap_drop"] == ["ALL"]
    assert given["security_opt"] == ["no-new-privileges:true"]
    assert given["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in given.get("ports", []))
    if "build" not in given and not given["image"].startswith("grafana/"):  # whose image has a user of its own
        assert given["user"] != "root"


def test_the_images_run_as_a_user_without_rights() -> None:
    for component in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]:
        assert re.findall(r"^USER (\w+)$", component, re.MULTILINE)[-1] == "acker"


def test_a_health_check_gives_time_to_start() -> None:
    checks = {
        name: service["healthcheck"]
        for name, service in GIVEN["services"].items()
        if "test" in service.get("healthcheck", {})
    }
    assert len(checks) > 10
    assert all({"interval", "timeout", "retries", "start_period"} <= check.keys() for check in checks.values())


@each
def test_service_depends_on_services_that_reach_its_condition(name: str) -> None:
    service = SERVICES[name]
    for other, condition in service.after.items():
        assert SERVICES[other].profiles in (frozenset(), service.profiles)
        if condition == "service_healthy":
            assert SERVICES[other].health
        if condition == "service_completed_successfully":
            assert SERVICES[other].ends


@each
def test_mounted_files_exist_and_volumes_are_declared(name: str) -> None:
    service = SERVICES[name]
    assert all(place.exists() for place in service.files.values())
    named = {volume for volume in service.volumes.values() if volume != f"{name}-data"}
    assert named <= GIVEN["volumes"].keys()
    assert all(mount.endswith(":ro") for mount in GIVEN["services"][name].get("volumes", []) if mount.startswith("./"))


def test_files_copied_into_images_are_in_build_context() -> None:
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {
        source
        for line in re.findall(r"^COPY (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_acl_file_matches_users_printed_by_the_library() -> None:
    """`python -m stack.users > stack/redis/users.acl` writes them."""
    assert (ROOT / "stack" / "redis" / "users.acl").read_text().splitlines() == users.lines()


def test_every_login_in_compose_file_is_a_known_user() -> None:
    names = {line.split()[1] for line in users.lines()}
    urls = [url for service in SERVICES.values() for url in service.environment.values() if "://" in url]
    assert len(urls) >= 8
    logins = {match for url in urls for match in re.findall(r"://([\w-]+):dev@", url)}
    assert logins <= names
    assert {"word-count-spout", "order-stream-spout", "acker-rotator"} <= logins


def test_profiles_select_their_services() -> None:
    usual = selected(SERVICES, frozenset())
    assert {"redis", "rotator-1", "rotator-2", "spark-master", "spark-worker", "job", "stream"} <= usual.keys()
    assert {profile for service in SERVICES.values() for profile in service.profiles} == {
        "monitoring", "kafka", "valkey", "sentinel", "cluster",
    }  # fmt: skip
    assert selected(SERVICES, frozenset({"kafka"})).keys() == {"kafka"}
    assert selected(SERVICES, frozenset({"valkey"})).keys() == {"valkey", "valkey-functions", "valkey-rotator"}


def test_grafana_shows_mounted_dashboard_from_own_prometheus() -> None:
    """No Grafana runs here: what it is given is held against the services."""
    folder = ROOT / "stack" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    assert any(port.endswith(":9090") for port in GIVEN["services"]["prometheus"]["ports"])
    scraped = yaml.safe_load((ROOT / "stack" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((folder / "dashboards" / "acker.yml").read_text(encoding="utf-8"))["providers"]
    path = provider["options"]["path"]
    mounted = [volume.split(":") for volume in GIVEN["services"]["grafana"]["volumes"]]
    (here,) = (one[0] for one in mounted if one[1] == path)
    home = GIVEN["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(f"{path}/") and (ROOT / here / home.removeprefix(f"{path}/")).is_file()
