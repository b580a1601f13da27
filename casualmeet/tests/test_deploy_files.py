"""The files of deploy/: everything they name exists, and what must hold for each of them does."""

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands
from django.urls import URLPattern, URLResolver, get_resolver, resolve

from casualmeet import shutdown
from casualmeet.tests.test_settings import example
from notifications import claims, live
from testing.processes import BASE_DIR

DEPLOY = BASE_DIR / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMMON = DEPLOY / "systemd" / "casualmeet-.service.d" / "10-common.conf"
# Not of this product, but of the images and tools that the files are for.
OTHERS = {
    *("POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_SHARED_BUFFERS"),
    *("CASUALMEET_VERSION", "TLS_DIRECTORY"),
}
LONGEST_CALL = claims.LONGEST_CALL.total_seconds()
LONGEST_REQUEST = settings.SHUTDOWN_SECONDS + shutdown.SOCKETS_SECONDS


def longest(role: str) -> float:
    """How long, in seconds, what a process is doing may take to end: a request's rest, or a carrier's answer."""
    return LONGEST_REQUEST if "web" in role else LONGEST_CALL


def objects(kind: str = "") -> list[dict[str, Any]]:
    found = [document for path in KUBERNETES for document in yaml.safe_load_all(path.read_text())]
    return [one for one in found if kind in {"", one["kind"]}]


def pods() -> dict[str, dict[str, Any]]:
    """The pod of each Deployment and Job, by role."""
    makers = [*objects("Deployment"), *objects("Job")]
    return {maker["metadata"]["labels"]["role"]: maker["spec"]["template"]["spec"] for maker in makers}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def unit(path: Path) -> configparser.ConfigParser:
    """A unit with what the drop-in adds to it."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read([COMMON, path])
    return parser


def command_lines() -> Iterator[list[str]]:
    """Every command line of ours in every file."""
    for name in ("Procfile", "Procfile.dev"):
        for line in (BASE_DIR / name).read_text().splitlines():
            yield shlex.split(line.partition(":")[2])
    for path in UNITS:
        yield from (shlex.split(line) for line in re.findall(r"^ExecStart=(.+)$", path.read_text(), re.MULTILINE))
    for service in compose()["services"].values():
        yield service.get("command", [])
    for pod in pods().values():
        yield pod["containers"][0].get("command", [])


def test_every_management_command_exists() -> None:
    named = {words[words.index("manage.py") + 1] for words in command_lines() if "manage.py" in words}
    assert {"run_timer_worker", "run_dispatch_worker", "run_scheduler", "migrate"} <= named
    assert named <= {*get_commands()}


def test_every_setting_exists() -> None:
    known = {*example(), *OTHERS}
    named = set(re.findall(r"\$\{([A-Z_]+)", (DEPLOY / "compose.yaml").read_text()))
    for service in compose()["services"].values():
        named |= {*service.get("environment", {})}
    for one in (*objects("ConfigMap"), *objects("Secret")):
        named |= {*one.get("data", {}), *one.get("stringData", {})}
    for pod in pods().values():
        named |= {variable["name"] for variable in pod["containers"][0].get("env", [])}
    assert len(named) > 20
    assert named <= known


def test_no_file_holds_a_secret() -> None:
    assert set(objects("Secret")[0]["stringData"].values()) == {""}
    container = (DEPLOY / "Containerfile").read_text()
    assert not re.search(r"^(ENV|ARG).*(KEY|TOKEN|PASSWORD|SECRET)", container, re.MULTILINE)
    ignored = (BASE_DIR / ".dockerignore").read_text().split()
    assert {".env", "**/.env", ".git", "var"} <= set(ignored)


class TestContainers:
    def test_the_image_runs_as_nobody_special_and_its_command_gets_the_signals(self) -> None:
        text = (DEPLOY / "Containerfile").read_text()
        last = text[text.rindex("\nFROM ") :]
        assert re.search(r"^USER 10001", last, re.MULTILINE)
        assert re.search(r'^CMD \["daphne", ', last, re.MULTILINE)
        assert re.search(r"^STOPSIGNAL SIGTERM$", last, re.MULTILINE)
        assert re.search(r'^HEALTHCHECK .* CMD \["python", "deploy/healthcheck.py"\]$', last, re.MULTILINE)
        assert "collectstatic" in text

    def test_every_service_has_a_health_check_and_time_to_end(self) -> None:
        services = compose()["services"]
        assert {"postgres", "redis", "migrate", "web", "timer", "dispatch", "scheduler", "nginx"} == set(services)
        for name, service in services.items():
            ours = service["image"].startswith("casualmeet:")
            assert ours or service["healthcheck"]["test"], name  # ours has the image's
            if ours:
                assert service["read_only"], name
                assert service["cap_drop"] == ["ALL"], name
        for name in ("web", "timer", "dispatch", "scheduler"):
            assert int(services[name]["stop_grace_period"].removesuffix("s")) > longest(name)
            assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        for name in ("timer", "dispatch", "scheduler"):
            assert services[name]["environment"]["ALIVE_FILE"]


class TestKubernetes:
    def test_there_is_what_each_role_needs(self) -> None:
        kinds = {(one["kind"], one["metadata"].get("name", "")) for one in objects() if "metadata" in one}
        for role in ("web", "timer", "dispatch", "scheduler"):
            assert {("Deployment", role), ("PodDisruptionBudget", role)} <= kinds
        assert {("Service", "web"), ("Ingress", "web"), ("HorizontalPodAutoscaler", "dispatch")} <= kinds
        assert {"Job", "ConfigMap", "Secret"} <= {kind for kind, _ in kinds}

    def test_every_pod_is_unprivileged_probed_and_has_time_to_end(self) -> None:
        for role, pod in pods().items():
            (container,) = pod["containers"]
            assert pod["securityContext"]["runAsNonRoot"], role
            assert container["securityContext"]["readOnlyRootFilesystem"], role
            assert container["resources"]["requests"], role
            assert container["resources"]["limits"]["memory"], role
            if role != "migrate":
                assert pod["terminationGracePeriodSeconds"] > longest(role), role
                assert container["startupProbe"], role
                assert container["livenessProbe"], role
        assert pods()["web"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"

    def test_workers_are_probed_by_themselves_and_not_by_the_health_of_the_fleet(self) -> None:
        for role in ("timer", "dispatch", "scheduler"):
            (container,) = pods()[role]["containers"]
            assert container["livenessProbe"]["exec"]["command"] == ["python", "deploy/healthcheck.py"]
            assert {"name": "ALIVE_FILE", "value": "/tmp/alive"} in container["env"]

    def test_budgets_and_services_choose_pods_that_there_are(self) -> None:
        labels = [one["spec"]["template"]["metadata"]["labels"] for one in objects("Deployment")]
        chosen = [one["spec"]["selector"]["matchLabels"] for one in objects("PodDisruptionBudget")]
        chosen += [one["spec"]["selector"] for one in objects("Service")]
        assert len(chosen) == 5
        assert all(one in labels for one in chosen)

    def test_dispatchers_are_as_many_as_the_queue_asks_for(self) -> None:
        (scaler,) = objects("HorizontalPodAutoscaler")
        assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "dispatch"}
        assert scaler["spec"]["metrics"][0]["external"]["metric"]["name"] == "casualmeet_outbox_depth"
        (deployment,) = (one for one in objects("Deployment") if one["metadata"]["name"] == "dispatch")
        assert "replicas" not in deployment["spec"]

    def test_live_sockets_outlive_the_ingress_time_limit(self) -> None:
        (ingress,) = objects("Ingress")
        annotations = ingress["metadata"]["annotations"]
        assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 2 * live.HEARTBEAT_SECONDS

    def test_the_kustomization_names_every_file_but_the_secret_and_the_migration(self) -> None:
        (kustomization,) = objects("Kustomization")
        files = {path.name for path in KUBERNETES}
        assert files - {*kustomization["resources"]} == {"kustomization.yaml", "secret.example.yaml", "migrate.yaml"}

    def test_every_address_that_is_probed_exists(self) -> None:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            resolve(pods()["web"]["containers"][0][probe]["httpGet"]["path"])


class TestSystemd:
    @pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
    def test_each_unit_is_hardened_and_started_again(self, path: Path) -> None:
        service = unit(path)["Service"]
        assert service["NoNewPrivileges"] == "yes"
        assert service["ProtectSystem"] == "strict"
        assert service["EnvironmentFile"] == "/etc/casualmeet/env"
        assert service["KillSignal"] == "SIGTERM"
        if service["Type"] != "oneshot":
            assert service["Restart"] == "always"
            assert float(service["TimeoutStopSec"]) > longest(path.stem)

    def test_the_watchdog_is_where_a_loop_tells_of_itself_and_slower_than_any_turn(self) -> None:
        watched = {path.stem for path in UNITS if "WatchdogSec" in unit(path)["Service"]}
        assert watched == {"casualmeet-timer@", "casualmeet-dispatch@", "casualmeet-scheduler"}


def routes(resolver: URLResolver | None = None, prefix: str = "") -> Iterator[str]:
    """The pattern of every address of ours."""
    for one in (resolver or get_resolver()).url_patterns:
        if isinstance(one, URLResolver):
            if one.namespace != "admin":
                yield from routes(one, prefix + str(one.pattern))
        elif isinstance(one, URLPattern):
            yield (prefix + str(one.pattern)).replace("^", "")


class TestNginx:
    text = (DEPLOY / "nginx.conf").read_text()

    def test_live_sockets_outlive_its_time_limit(self) -> None:
        block = re.search(r"location /ws/ \{(.*?)\n    \}", self.text, re.DOTALL)
        assert block
        seconds = re.search(r"proxy_read_timeout (\d+)s", block[1])
        assert seconds
        assert int(seconds[1]) > 2 * live.HEARTBEAT_SECONDS

    def test_no_address_that_ends_in_a_secret_is_logged(self) -> None:
        masked = re.search(r"~\^\(\?<room>(\S+)\) \$room\[token\]", self.text)
        assert masked
        secret = [f"/{route}" for route in routes() if re.search(r"<(?:str:)?(token|secret)>", route)]
        assert len(secret) >= 6
        quiet = re.search(r"location ~ (\S+) \{\s+error_log", self.text)
        # What follows the secret in the pattern is nothing that these look at.
        for route in secret:
            assert re.match(masked[1], route), route
            assert quiet
            assert re.match(quiet[1], route), route

    def test_only_guessing_is_limited(self) -> None:
        limited = re.findall(r"~(\^POST:\S+)\s+\$binary_remote_addr", self.text)
        assert len(limited) == 3
        for path in ("/login/", "/signup/", "/api/tokens", "/admin/login/"):
            resolve(path)
            assert any(re.match(pattern, f"POST:{path}") for pattern in limited)
        for route in routes():
            stops = any(re.match(pattern, f"POST:/{route}") for pattern in limited)
            assert stops == route.startswith(("login/", "signup/", "api/tokens")), route

    def test_it_takes_the_largest_body_that_the_site_takes(self) -> None:
        size = re.search(r"client_max_body_size (\d+)k;", self.text)
        assert size
        assert int(size[1]) * 1024 == settings.DATA_UPLOAD_MAX_MEMORY_SIZE

    def test_what_clients_send_in_forwarded_headers_counts_for_nothing(self) -> None:
        assert re.search(r"proxy_set_header X-Forwarded-For\s+\$remote_addr;", self.text)
        assert re.search(r"proxy_set_header X-Forwarded-Proto \$scheme;", self.text)
        assert "proxy_add_x_forwarded_for" not in self.text
