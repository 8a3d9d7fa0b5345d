"""What machines of a fleet get beside keys: their settings, and three lines that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Final

import tomli_w

from retexo_fl.fleet.description import Fleet, FleetClient
from retexo_fl.fleet.shipped import shipped
from retexo_fl.masking.agreement import LEAST

_CONTAINERS: Final = "containers of docs/containers.md, whose user owns this folder (10001)"
_PODS: Final = "kubectl apply -k . (docs/kubernetes.md: images, and the part, come first)"
#: Placeholder of a client's name in its objects of Kubernetes.
_A_CLIENT: Final = "a-client"
_KUSTOMIZATION: Final = "kustomization.yaml"
_BUNDLE: Final = ("agent.toml", "ca.crt", "certificate.pem", "key.pem", "supernode-key")
_UNITS: Final = ("clients/retexo-agent@.service", "clients/retexo-supernode@.service")


def client_texts(fleet: Fleet, one: FleetClient) -> dict[str, bytes]:
    """Return the files of a client's bundle that follow from the fleet's file, by name."""
    texts = {"agent.toml": tomli_w.dumps(dict(one.agent)), "README": _client_lines(fleet, one)}
    if fleet.has_units:
        units = _UNITS[:1] if fleet.own_nodes else _UNITS
        if not fleet.own_nodes:
            texts["supernode.env"] = f"SUPERLINK={fleet.server}\nNODE_PORT={one.node_port}\n"
        texts["install.sh"] = shipped("clients/install-client.sh").read_text("utf-8")
        texts |= {Path(name).name: shipped(name).read_text("utf-8") for name in units}
    elif fleet.services == "kubernetes":
        objects = shipped("kubernetes/client.yaml").read_text("utf-8")
        texts["client.yaml"] = objects.replace(_A_CLIENT, one.name)
        # With the key by which an owner promised.
        secret = ["agreement-secret"] if fleet.terms else []
        texts[_KUSTOMIZATION] = _kustomization(
            "client.yaml",
            secrets={f"{one.name}-bundle": [*_BUNDLE, *secret]},
            public={f"{one.name}-roster": ["roster.toml"]},
        )
    return {name: text.encode() for name, text in texts.items()}


def server_texts(fleet: Fleet) -> dict[str, bytes]:
    """Return the files of the server's bundle that follow from the fleet's file, by name."""
    script = shipped("server/register-client.sh").read_bytes()
    texts = {"README": _server_lines(fleet).encode(), "register-client.sh": script}
    if fleet.has_units:
        unit = shipped("server/retexo-superlink.service")
        texts[unit.name] = unit.read_bytes()
    elif fleet.services == "kubernetes":
        texts["server.yaml"] = shipped("kubernetes/server.yaml").read_bytes()
        tls = [f"tls/{name}" for name in ("ca.crt", "server.pem", "server.key")]
        keys = [f"supernodes/{one.name}.pub" for one in fleet.clients]
        texts[_KUSTOMIZATION] = _kustomization(
            "server.yaml", secrets={"server-tls": tls}, public={"supernodes": keys}
        ).encode()
    return texts


def _kustomization(
    objects: str, *, secrets: Mapping[str, list[str]], public: Mapping[str, list[str]]
) -> str:
    """Return what makes Secrets and ConfigMaps of a bundle's files, beside a file of objects."""
    lines = [
        "apiVersion: kustomize.config.k8s.io/v1beta1",
        "kind: Kustomization",
        f"resources: [{objects}]",
        "generatorOptions: {disableNameSuffixHash: true}",
    ]
    for kind, made in (("secretGenerator", secrets), ("configMapGenerator", public)):
        lines.append(f"{kind}:")
        for name, files in made.items():
            lines += [f"  - name: {name}", "    files:", *(f"      - {file}" for file in files)]
    return "\n".join(lines) + "\n"


def supernode_command(fleet: Fleet, one: FleetClient) -> list[str]:
    """Return how a client's SuperNode is started in the folder of its bundle, without a service."""
    return [
        *("flower-supernode", "--superlink", str(fleet.server), "--root-certificates", "ca.crt"),
        *("--auth-supernode-private-key", "supernode-key", "--port", str(one.node_port)),
        "--node-config",
    ]


def superlink_command(fleet: Fleet, host: str) -> list[str]:
    """Return how the SuperLink is started in the folder of the server's bundle, at an address."""
    return [
        *("flower-superlink", "--host", host, "--port", str(fleet.server.port)),
        *("--enable-supernode-auth", "--ssl-ca-certfile", "tls/ca.crt"),
        *("--ssl-certfile", "tls/server.pem", "--ssl-keyfile", "tls/server.key"),
    ]


def _client_lines(fleet: Fleet, one: FleetClient) -> str:
    if fleet.has_units:
        node = "" if fleet.own_nodes else f" retexo-supernode@{one.name}"
        start = f"systemctl enable --now retexo-agent@{one.name}{node}"
        place = f"{one.agent['partition']} (sh install.sh PART copies it there)"
    elif fleet.services == "containers":
        start = _CONTAINERS
        place = f"a folder that the agent's container has at {one.agent['partition']}"
    elif fleet.services == "kubernetes":
        start = _PODS
        place = f"the volume {one.name}-part"
    else:
        start = "retexo agent run --config agent.toml &"
        if not fleet.own_nodes:
            node = " ".join(map(quote, supernode_command(fleet, one)))
            start += f' {node} "agent=\\"$PWD/agent.sock\\"" &'
        place = str(one.agent["partition"])
    if not fleet.keys_here:
        return _owner_lines(fleet, one, start, place)
    install = "As root, there: sh install.sh" if fleet.has_units else "There: nothing more"
    return (
        f"Copy: this folder, with its modes (scp -rp), to {one.host}; the part to {place}.\n"
        f"{install}. Whoever starts it owns what is secret: keep no other copy of it.\n"
        f"Start: {start}\n"
    )


def _owner_lines(fleet: Fleet, one: FleetClient, start: str, place: str) -> str:
    """Return what the owner does who makes keys, and promises and signs where there are masks."""
    addresses = " ".join(f"--address {quote(address)}" for address in one.addresses)
    own = f"/etc/retexo/{one.name}/" if fleet.has_units else ""
    # Whoever sent the bundle decides what is started and, by install.sh, done as root.
    read = " and install.sh" if fleet.has_units else ""
    install = "; as root, sh install.sh PART" if fleet.has_units else ""
    promise = f"{install}; retexo keys member --config {own}agent.toml" if fleet.terms else ""
    signing = (
        "; when it has come, a signature of proposed.toml (retexo keys sign proposed.toml "
        f"--config {own}agent.toml)"
    )
    return (
        f"Read agent.toml{read} first. Make, on {one.host}, in this folder: "
        f"retexo keys new --client {one.client} {addresses} "
        f"--out . && ssh-keygen -q -t ecdsa -b 384 -N '' -C '' -f supernode-key{promise}.\n"
        f"Send: {own if fleet.terms else ''}member.toml as members/{one.name}.toml, "
        f"supernode-key.pub as members/{one.name}.pub{signing if fleet.terms else ''}.\n"
        f"Start, with roster.toml, and the part at {place}: "
        f"{'sh install.sh && ' if fleet.has_units else ''}{start}\n"
    )


def _server_lines(fleet: Fleet) -> str:
    sums = "" if fleet.terms or len(fleet.clients) < LEAST else " --secure-aggregation none"
    if fleet.has_units:
        copy = "Copy: tls/ to /etc/retexo/tls, retexo-superlink.service to /etc/systemd/system"
        start = "systemctl daemon-reload && systemctl enable --now retexo-superlink"
    elif fleet.services == "containers":
        copy, start = "Copy: this folder, with its modes (scp -rp)", _CONTAINERS
    elif fleet.services == "kubernetes":
        return (
            "Copy: this folder, with its modes (scp -rp), to where kubectl runs.\n"
            f"Start: {_PODS}; the Job register lets the clients in\n"
            f"Then: kubectl exec server-0 -- retexo run --superlink {fleet.server} "
            f"--root-certificates /etc/retexo/tls/ca.crt --clients {len(fleet.clients)}{sums} "
            "--out runs/first\n"
        )
    else:
        copy = "Copy: this folder, with its modes (scp -rp)"
        host = "::" if ":" in fleet.server.host else "0.0.0.0"  # noqa: S104 - all clients
        start = f"{' '.join(superlink_command(fleet, host))} --database superlink.db &"
    return (
        f"{copy}, to {fleet.server.host}.\n"
        f"Start: {start}\n"
        f"Then: sh register-client.sh {fleet.server} tls/ca.crt supernodes/*.pub; retexo run "
        f"--superlink {fleet.server} --root-certificates tls/ca.crt --clients "
        f"{len(fleet.clients)}{sums} --out runs/first\n"
    )
