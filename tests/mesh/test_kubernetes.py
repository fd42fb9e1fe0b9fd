"""The manifests of deploy/kubernetes: valid by schema, and true of the daemon and Envoy."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.envoy import CONFIGURATION, PROGRAM, ROOT, Certificates, program

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
TOOLS = PROGRAM.parent
RESERVE_SECONDS = 5
"""What a pod needs beyond preStop and the drain: Envoy's end."""

Json = dict[str, Any]
DUMP = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"


def documents(path: Path) -> list[Json]:
    """The documents of a YAML file."""
    program()  # fails or skips where the tools are missing
    done = subprocess.run(
        [str(TOOLS / "python"), "-c", DUMP, str(path)], capture_output=True, check=True
    )
    loaded: list[Json] = json.loads(done.stdout)
    return loaded


def resources() -> Iterator[Json]:
    for path in MANIFESTS:
        for document in documents(path):
            if document["kind"] != "Kustomization":
                yield document


def pods() -> list[Json]:
    return [each["spec"]["template"] for each in resources() if each["kind"] == "Deployment"]


def containers(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def daemon_of(pod: Json) -> Json:
    return next(each for each in containers(pod) if each["name"] == "agentstreamd")


def named(kind: str) -> Json:
    found = [each for each in resources() if each["kind"] == kind]
    return next(each for each in found if each["metadata"]["name"] == "agentstream")


def test_every_resource_is_valid_by_its_schema() -> None:
    program()
    paths = [str(path) for path in MANIFESTS if path.name != "kustomization.yaml"]
    done = subprocess.run(
        [str(TOOLS / "kubernetes-validate"), "--strict", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("passed") == len(paths)


def test_every_manifest_of_the_service_is_listed() -> None:
    directory = ROOT / "deploy" / "kubernetes" / "service"
    (listed,) = documents(directory / "kustomization.yaml")
    files = {path.name for path in directory.iterdir()} - {"kustomization.yaml"}
    assert set(listed["resources"]) == files


def test_containers_run_without_privileges_on_a_root_they_cannot_write() -> None:
    assert len(pods()) == 2
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_pod_lives_on_for_long_enough_to_drain() -> None:
    for pod in pods():
        daemon = daemon_of(pod)
        (flag,) = [each for each in daemon["args"] if each.startswith("--drain-timeout-seconds=")]
        before = daemon.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        needed = before + float(flag.split("=")[1]) + RESERVE_SECONDS
        assert pod["spec"]["terminationGracePeriodSeconds"] >= needed


def test_two_daemons_never_share_a_volume() -> None:
    spec = named("Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    assert named("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_the_daemon_takes_the_flags_of_the_manifests(
    tmp_path: Path, certificates: Certificates
) -> None:
    chain, key = certificates.daemon
    token = tmp_path / "token"
    token.write_text("secret")
    places = {
        "/var/lib/agentstream": str(tmp_path),
        "/etc/agentstream/tls/tls.crt": str(chain),
        "/etc/agentstream/tls/tls.key": str(key),
        "/etc/agentstream/tls/ca.crt": str(certificates.ca),
        "/etc/agentstream/token/token": str(token),
    }
    for pod in pods():
        mounted = {each["mountPath"] for each in daemon_of(pod)["volumeMounts"]}
        flags = []
        for flag in daemon_of(pod)["args"]:
            name, value = flag.split("=", 1)
            assert not value.startswith("/") or any(value.startswith(path) for path in mounted)
            for place, path in places.items():
                value = value.replace(place, path)
            flags.append(f"{name}={value}")
        done = subprocess.run(
            [sys.executable, "-m", "agentstreamd", *flags, "--print-config"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_envoy_finds_its_ports_and_certificates_in_the_pod() -> None:
    text = CONFIGURATION.read_text()
    spec = named("Deployment")["spec"]["template"]["spec"]
    (envoy,) = [each for each in spec["initContainers"] if each["name"] == "envoy"]
    assert "env" not in envoy
    opened = {int(port) for port in re.findall(r"0\.0\.0\.0, port_value: (\d+)", text)}
    assert {port["containerPort"] for port in envoy["ports"]} == opened
    (volume,) = [each for each in spec["volumes"] if each["name"] == "envoy"]
    sources = [next(iter(each.values())) for each in volume["projected"]["sources"]]
    mounted = {item["path"] for source in sources for item in source["items"]}
    assert mounted == set(re.findall(r"filename: (tls/[\w.-]+)", text)) | {"envoy.yaml"}
    assert envoy["volumeMounts"] == [
        {"name": "envoy", "mountPath": envoy["workingDir"], "readOnly": True}
    ]
    tested = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
    assert f"/{envoy['image'].rsplit(':v', 1)[1]}/" in tested.stdout


def test_services_and_policies_select_the_pod() -> None:
    labels = named("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert named("Service")["spec"]["selector"] == labels
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert named("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


async def test_the_probe_of_the_sidecar_tells_a_daemon_that_serves_from_one_that_does_not() -> None:
    (probe,) = [
        daemon_of(pod)["startupProbe"]["exec"]["command"]
        for pod in pods()
        if "exec" in daemon_of(pod)["startupProbe"]
    ]
    assert probe[:2] == ["python3", "-c"]
    service = health.aio.HealthServicer()
    name = "agentstream.v1.AgentService"
    await service.set(name, health_pb2.HealthCheckResponse.SERVING)
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    code = probe[2].replace("50051", str(port))
    assert await _exit_of(code) == 0
    await service.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    assert await _exit_of(code) == 1
    await server.stop(0)


async def _exit_of(code: str) -> int:

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    return await process.wait()
