"""A fleet's objects of Kubernetes say what images, code and page say; no cluster runs them here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml  # type: ignore[import-untyped]

from retexo_fl.agent.settings import read_settings
from retexo_fl.fleet.description import AGENT_PORT, SUPERLINK_PORT
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.short_paths import tmp_path

__all__ = ["tmp_path"]

FLEET: dict[str, Any] = {
    "name": "bank",
    "keys": "here",
    "services": "kubernetes",
    "server": {"address": "server"},
    "client": [{"count": 3, "name": "branch-{client}", "host": "{name}"}],
}
CLIENTS = ("branch-0", "branch-1", "branch-2")
SECRETS = {"key.pem", "supernode-key", "agent.toml", "server.key"}
PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def bank(retexo: CommandLine, tmp_path: Path) -> Path:
    (tmp_path / "FLEET.toml").write_text(tomli_w.dumps(FLEET))
    retexo.done("fleet", "new", tmp_path / "FLEET.toml")
    return tmp_path / "bank"


def objects(bundle: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what a bundle brings, by kind and name; generated ones have their ``files``."""
    told = yaml.safe_load((bundle / "kustomization.yaml").read_text())
    found = {}
    for name in told["resources"]:
        for one in yaml.safe_load_all((bundle / name).read_text()):
            found[one["kind"], one["metadata"]["name"]] = one
    for kind, key in (("Secret", "secretGenerator"), ("ConfigMap", "configMapGenerator")):
        for one in told[key]:
            found[kind, one["name"]] = one
    # Names stay, so that what is mounted follows a change.
    assert told["generatorOptions"] == {"disableNameSuffixHash": True}
    return found


def pods(bundle: Path) -> list[dict[str, Any]]:
    specs = [one.get("spec", {}) for one in objects(bundle).values()]
    return [spec["template"] for spec in specs if "template" in spec]


def sources(volume: dict[str, Any]) -> list[tuple[str, str]]:
    """Return kinds and names of what a volume is of."""
    of = {"secret": "Secret", "configMap": "ConfigMap"}
    if "persistentVolumeClaim" in volume:
        return [("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])]
    places = volume.get("projected", {}).get("sources", [volume])
    return [
        (kind, place[key].get("name", place[key].get("secretName")))
        for place in places
        for key, kind in of.items()
        if key in place
    ]


def bundles(bank: Path) -> list[Path]:
    return [bank / "server", *(bank / "clients" / name for name in CLIENTS)]


def test_what_is_mounted_is_there_and_keys_are_secrets(bank: Path) -> None:
    for bundle in bundles(bank):
        found = objects(bundle)
        for (kind, _), one in found.items():
            if kind in {"Secret", "ConfigMap"}:
                assert all((bundle / name).is_file() for name in one["files"])
                names = {Path(name).name for name in one["files"]}
                assert kind == "Secret" or not names & SECRETS
        for pod in pods(bundle):
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            assert all(source in found for volume in volumes.values() for source in sources(volume))
            (container,) = pod["spec"]["containers"]
            is_job = pod["spec"].get("restartPolicy") == "OnFailure"
            claims = set() if is_job else {"state"}
            assert {it["name"] for it in container["volumeMounts"]} == volumes.keys() | claims


def test_a_pod_may_nothing_and_is_of_our_images(bank: Path) -> None:
    compose = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text("utf-8"))
    images = {one["image"] for one in compose["services"].values()}
    for bundle in bundles(bank):
        for pod in pods(bundle):
            spec = pod["spec"]
            assert spec["securityContext"]["runAsNonRoot"]
            assert spec["securityContext"]["runAsUser"] == 10001
            assert spec["automountServiceAccountToken"] is False
            (container,) = spec["containers"]
            assert container["image"] in images
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_a_service_is_one_client_whose_addresses_lead_to_it(bank: Path) -> None:
    labels = [pod["metadata"]["labels"] for bundle in bundles(bank) for pod in pods(bundle)]
    for name in CLIENTS:
        bundle = bank / "clients" / name
        found = objects(bundle)
        service, agent = found["Service", name]["spec"], found["StatefulSet", name]["spec"]
        meant = [its for its in labels if service["selector"].items() <= its.items()]
        assert meant == [agent["template"]["metadata"]["labels"]]
        assert agent["selector"]["matchLabels"] == service["selector"]
        assert [port["port"] for port in service["ports"]] == [AGENT_PORT]
        settings = read_settings(bundle / "agent.toml")
        assert settings.superlink == f"server:{SUPERLINK_PORT}"
        # A name that Kubernetes resolves, whatever Pod is behind it.
        roster = (bundle / "roster.toml").read_text()
        assert all(f"tcp://{other}:{AGENT_PORT}" in roster for other in CLIENTS)
        (container,) = agent["template"]["spec"]["containers"]
        places = {it["mountPath"]: it for it in container["volumeMounts"]}
        for file in (settings.key, settings.roster, settings.supernode_key):
            assert str(Path(file).parent) in places
        assert places[settings.partition]["readOnly"]
        assert str(Path(settings.socket).parent) in places
        assert str(Path(settings.state).parent) in places
        assert f"{name}-part" in (bundle / "README").read_text()


def test_the_server_lets_in_all_of_the_fleet(bank: Path) -> None:
    found = objects(bank / "server")
    assert found["ConfigMap", "supernodes"]["files"] == [f"supernodes/{it}.pub" for it in CLIENTS]
    assert [it["port"] for it in found["Service", "server"]["spec"]["ports"]] == [SUPERLINK_PORT]
    (job,) = found["Job", "register"]["spec"]["template"]["spec"]["containers"]
    assert job["args"][-1].startswith(f"register-client.sh server:{SUPERLINK_PORT} ")
    readme = (bank / "server" / "README").read_text()
    assert "retexo run --superlink server:8000 --root-certificates /etc/retexo/tls/ca.crt" in readme


def test_what_a_policy_lets_through_is_what_is_spoken(bank: Path) -> None:
    found = objects(bank / "clients" / "branch-1")
    policy = found["NetworkPolicy", "branch-1"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (incoming,) = policy["ingress"]
    assert [it["port"] for it in incoming["ports"]] == [AGENT_PORT]
    leaving = {it["port"] for rule in policy["egress"] for it in rule["ports"]}
    assert leaving == {AGENT_PORT, SUPERLINK_PORT, 53}
    # Peers are whoever is an agent, the server whoever is it.
    peers = [its["metadata"]["labels"] for its in pods(bank / "clients" / "branch-2")]
    server = [its["metadata"]["labels"] for its in pods(bank / "server")][:1]
    wanted = [
        rule["podSelector"]["matchLabels"].items()
        for rules in policy["egress"]
        for rule in rules.get("to", [])
    ]
    assert wanted[0] <= peers[0].items()
    assert wanted[1] <= server[0].items()


def test_the_page_fills_the_volume_that_there_is(bank: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    pod = yaml.safe_load(text)
    claims = [source for volume in pod["spec"]["volumes"] for source in sources(volume)]
    assert all(claim in objects(bank / "clients" / "branch-0") for claim in claims)


def test_the_file_of_the_page_makes_a_fleet(retexo: CommandLine, tmp_path: Path) -> None:
    (told,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "FLEET.toml").write_text(told)
    assert "3 clients in" in retexo.done("fleet", "new", tmp_path / "FLEET.toml")
    assert next(iter(objects(tmp_path / "bank/clients/branch-2"))) == ("Service", "branch-2")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"supernode": "flower"}, "supernode: got 'flower'; expected \"agent\": a Pod is one"),
        (
            {"client": [{"name": "server", "host": "{name}"}]},
            "client 0: name: got 'server'; expected a letter at its beginning, and none of server",
        ),
        ({"client": [{"name": "0-x", "host": "{name}"}]}, "client 0: name: got '0-x'; expected a"),
        ({"keys": "theirs", "masks": {}}, "services: got 'kubernetes'; expected keys = \"here\""),
    ],
)
def test_what_does_not_fit_is_refused(
    retexo: CommandLine, tmp_path: Path, changes: dict[str, Any], refusal: str
) -> None:
    file = tmp_path / "FLEET.toml"
    file.write_text(tomli_w.dumps({**FLEET, **changes}))
    assert refusal in retexo.refused("fleet", "new", file)
    assert not (tmp_path / "bank").exists()
