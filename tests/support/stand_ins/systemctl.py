#!@PYTHON@ -PS
"""systemctl, as far as the documents use it: starts what units say, as the users they name.

What units forbid is not in it: systemd itself verifies them in other tests.
"""

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")


def file_of(name: str) -> Path:
    """Return the file of a unit: of one with a name, `UNIT@NAME.service`, its template's."""
    return UNITS / re.sub("@.*[.]", "@.", name)


def entries_of(name: str) -> list[tuple[str, str]]:
    """Return the settings of a unit with what is added to it, in their order."""
    files = [file_of(name), *sorted((UNITS / f"{name}.d").glob("*.conf"))]
    text = "\n".join(path.read_text() for path in files).replace("\\\n", " ")
    text = text.replace("%i", name.partition("@")[2].rpartition(".")[0])
    return re.findall(r"^(\w+)=(.*)$", text, re.M)


def start(name: str) -> None:
    """Start a unit; it goes on when this program has ended."""
    entries = entries_of(name)
    last = dict(entries)
    for key, value in entries:
        if key.startswith("ConditionPathExists") and not any(Path("/").glob(value[1:])):
            return
    user = pwd.getpwnam(last.get("User", "root"))
    for key, below in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
        if key in last:
            folder = Path(below, last[key])
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(int(last[f"{key}Mode"], 8))
            os.chown(folder, user.pw_uid, user.pw_gid)
    variables = dict(value.split("=", 1) for key, value in entries if key == "Environment")
    if "EnvironmentFile" in last:
        lines = Path(last["EnvironmentFile"]).read_text().split()
        variables |= dict(line.split("=", 1) for line in lines)
    if "LoadCredential" in last:
        credential, source = last["LoadCredential"].split(":")
        folder = Path("/run/credentials", name)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / credential)
        os.chown(folder / credential, user.pw_uid, user.pw_gid)
        (folder / credential).chmod(0o400)
        variables["CREDENTIALS_DIRECTORY"] = str(folder)
    command = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], last["ExecStart"])
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    with Path("/var/log", f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [*become, *shlex.split(command)],
            env=variables,
            cwd=last.get("WorkingDirectory", "/"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    Path("/run", f"{name}.pid").write_text(str(process.pid))


def stop(name: str) -> None:
    """End a unit, with all that it started."""
    path = Path("/run", f"{name}.pid")
    if path.exists():
        group = int(path.read_text())
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 20
            try:
                while time.monotonic() < deadline:
                    os.killpg(group, number)
                    time.sleep(0.1)
            except ProcessLookupError:
                break
        path.unlink()


words = [word for word in sys.argv[1:] if not word.startswith("-")]
names = [name if "." in name else f"{name}.service" for name in words[1:]]
for unit in names:
    if not file_of(unit).exists():
        continue
    if words[0] in ("stop", "restart"):
        stop(unit)
    if words[0] in ("start", "restart") or (words[0] == "enable" and "--now" in sys.argv):
        start(unit)
with Path("/mnt/calls").open("a") as calls:
    calls.write("systemctl " + " ".join(sys.argv[1:]) + "\n")
