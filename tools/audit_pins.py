"""Compare the pinned versions with the PyPA advisory database, without network access.

    git clone https://github.com/pypa/advisory-database
    python tools/audit_pins.py constraints.txt advisory-database/vulns

`pip-audit` is more up to date if it can reach its service. Exits with status 1 if an advisory applies.
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version


def main(constraints: str, database: str) -> int:
    """Print the advisories that apply to the pins, and the number of advisories and pins."""
    lines = [line.split("#")[0].strip() for line in Path(constraints).read_text().splitlines()]
    pins = [line.split("==") for line in lines if line]
    advisories, applying = 0, 0
    for name, version in pins:
        for path in sorted(Path(database, canonicalize_name(name)).glob("*.yaml")):
            advisory = yaml.safe_load(path.read_text(encoding="utf-8"))
            advisories += 1
            if not advisory.get("withdrawn") and applies(advisory, name, version):
                applying += 1
                print(f"{name}=={version}: {advisory['id']} {advisory.get('details', '')[:200]}")
    if not advisories:
        raise SystemExit(
            f"{database} has no advisories about any pin; give the folder vulns of the database"
        )
    print(f"{len(pins)} pins, {advisories} advisories about them, {applying} apply")
    return int(applying > 0)


def applies(advisory: dict[str, Any], name: str, version: str) -> bool:
    """Return whether a version is affected."""
    same = (
        affected
        for affected in advisory.get("affected", [])
        if canonicalize_name(affected["package"]["name"]) == canonicalize_name(name)
    )
    return any(
        version in affected.get("versions", [])
        or any(in_range(r["events"], Version(version)) for r in affected.get("ranges", [])
               if r["type"] == "ECOSYSTEM")
        for affected in same
    )  # fmt: skip


def in_range(events: list[dict[str, str]], version: Version) -> bool:
    """Return whether a version is within a range in the OSV schema, whose events are in order."""
    inside = False
    for event in events:
        ((kind, value),) = event.items()
        if kind == "introduced" and version >= Version(value):
            inside = True
        elif (kind == "fixed" and version >= Version(value)) or (
            kind == "last_affected" and version > Version(value)
        ):
            inside = False
    return inside


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
