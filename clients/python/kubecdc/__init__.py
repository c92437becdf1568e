"""Rebuilds the state of a cluster from the stream of kubecdc alone, by the rules of docs/consuming.md.

A Table applies records of the native form one by one: the values of the formats json and cloudevents, and the data of
cloudevents-structured. The records of one object must be in order, as in a Kafka partition, a JetStream stream or a file;
different objects and partitions may be read in any order. Repeated records change nothing.

The package needs the standard library only, does no I/O, and is not safe for concurrent use. The numbers in comments are
those of the rules.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing

__all__ = ["Gap", "InvalidRecord", "Key", "Object", "Resource", "SnapshotStatus", "Table", "parse"]


class InvalidRecord(ValueError):
    """A value is no native object, or lacks a member that its type requires. The text does not quote it."""


class Resource(typing.NamedTuple):
    """A resource of a cluster, independent of the version in which it is served."""

    cluster: str
    group: str
    resource: str


class Key(typing.NamedTuple):
    """An object by name. An object that is deleted and created again has the same key."""

    namespace: str
    name: str


class Object(typing.NamedTuple):
    """An existing object."""

    key: Key
    uid: str
    resource_version: str
    body: dict


class Gap(typing.NamedTuple):
    """Lost history of a resource. The differences follow, so the table is correct again once they have been applied."""

    resource: Resource
    start: str
    to: str
    reason: str


class SnapshotStatus(typing.NamedTuple):
    """A snapshot. verified means that count and digest match its end; it is False while other partitions lag behind."""

    resource: Resource
    namespace: str
    id: str
    ended: bool
    verified: bool


def parse(value: bytes | str) -> dict:
    """Decode one native object. Unknown members and types are kept; Table.apply ignores them."""
    try:
        record = json.loads(value)
    except ValueError:
        raise InvalidRecord("not a native object: no JSON") from None
    if not isinstance(record, dict) or not _is_text(record.get("id")) or not _is_text(record.get("type")):
        raise InvalidRecord("not a native object: no id or no type")
    required = {"snapshot.begin": "snapshot", "snapshot.end": "snapshot", "gap": "gap"}.get(record["type"])
    if required and not isinstance(record.get(required), dict):
        raise InvalidRecord(f"record {record['id']} lacks the member that its type {record['type']} requires")
    return record


class Table:
    """The existing objects according to the stream.

    It also keeps the newest version of deleted objects, because records can be repeated: see remove_deleted.
    """

    def __init__(self) -> None:
        self._resources: dict[Resource, _ResourceState] = {}
        self.gaps: list[Gap] = []

    def apply(self, record: dict) -> None:
        """Apply the next record, as parse returns it. Unknown types are ignored, because new types may be added (9)."""
        resource = Resource(record.get("cluster", ""), record.get("group", ""), record.get("resource", ""))
        kind = record["type"]
        if kind in ("added", "updated", "deleted", "snapshot", "sync"):
            self._state(resource).apply_object(record)
        elif kind == "snapshot.begin":
            self._state(resource).snapshot(record["snapshot"]["id"]).namespace = record.get("namespace", "")
        elif kind == "snapshot.end":
            self._state(resource).apply_snapshot_end(record)
        elif kind == "gap":
            gap = record["gap"]
            self.gaps.append(Gap(resource, gap.get("from", ""), gap.get("to", ""), gap.get("reason", "")))
            self._state(resource).apply_gap(gap)

    def get(self, resource: Resource, key: Key) -> Object | None:
        """Return an object, or None if it does not exist."""
        row = self._state(resource).rows.get(key)
        if row is None or row.deleted:
            return None
        return Object(key, row.uid, row.resource_version, row.body)

    def objects(self, resource: Resource) -> typing.Iterator[Object]:
        """Iterate over all existing objects of a resource, in no particular order."""
        for key, row in self._state(resource).rows.items():
            if not row.deleted:
                yield Object(key, row.uid, row.resource_version, row.body)

    def resources(self) -> list[Resource]:
        """Return all resources of which a record was applied."""
        return list(self._resources)

    def snapshots(self) -> typing.Iterator[SnapshotStatus]:
        """Iterate over all snapshots received, in no particular order."""
        for resource, state in self._resources.items():
            for one in state.snapshots.values():
                yield SnapshotStatus(resource, one.namespace, one.id, one.end is not None, one.verified)

    def remove_deleted(self) -> None:
        """Drop what is kept of deleted objects, to bound the memory of a long-lived table.

        Call it when the records read so far can no longer be repeated, for example a day after a restart of the exporter.
        """
        for state in self._resources.values():
            state.rows = {key: row for key, row in state.rows.items() if not row.deleted}

    def _state(self, resource: Resource) -> _ResourceState:
        return self._resources.setdefault(resource, _ResourceState())


@dataclasses.dataclass
class _Row:
    """The newest record of one key (2, 4). It is kept after the object is deleted."""

    id: str
    uid: str
    resource_version: str
    deleted: bool
    body: dict | None
    read_version: str  # of the cluster, when the record was read (8)
    observed_at: str
    snapshot_id: str | None = None  # the last snapshot that contained this key (6)
    uncertain: bool = False  # deleted, but the version may be of another state: history was lost (5)

    def should_drop(self, record: dict) -> bool:
        """Report whether the row has the same record or a newer one."""
        snapshot = record.get("snapshot")
        if record["id"] == self.id:  # 4
            return True
        if record.get("coalesced") or snapshot and snapshot["id"] != self.snapshot_id:  # 5, 6
            return False
        version = record.get("resourceVersion", "")
        if self.deleted and not snapshot and (record.get("uid", ""), version) == (self.uid, self.resource_version):  # 4
            return True
        return not self.uncertain and _compare(version, self.resource_version) < 0  # 4, 5


class _Snapshot:
    """One snapshot. It keeps the listed versions until count and digest are verified."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.namespace = ""  # for all namespaces
        self.end: dict | None = None
        self.position = ""  # of the end, unless a gap has lowered it (7)
        self.ended_at = ""
        self.verified = False
        self._versions: dict[Key, tuple[str, str]] = {}  # uid and version of each listed object
        self._digest = [0, 0, 0, 0]

    def supersedes(self, key: Key, row: _Row) -> bool:
        """Report whether the snapshot would contain the object, in this or a later version, if it still existed (8)."""
        return (
            row.snapshot_id != self.id
            and self.namespace in ("", key.namespace)
            and _compare(row.resource_version, self.position) <= 0
            and _is_read_before(row.read_version, self.position, row.observed_at, self.ended_at)
        )

    def record_version(self, key: Key, row: _Row) -> None:
        """Record a version that the list of the snapshot contains."""
        if self.verified:
            return
        if key in self._versions:
            self._add(key, *self._versions.pop(key), sign=-1)
        if not row.deleted:
            self._versions[key] = (row.uid, row.resource_version)
            self._add(key, row.uid, row.resource_version, sign=1)
        self.verify()

    def verify(self) -> None:
        """Compare count and digest with the end. A mismatch may be temporary: other partitions can lag behind."""
        if self.end is None or len(self._versions) != self.end.get("count"):
            return
        if "".join(f"{word:016x}" for word in self._digest) == self.end.get("digest"):
            self.verified, self._versions = True, {}

    def _add(self, key: Key, uid: str, version: str, sign: int) -> None:
        total = hashlib.sha256(f"{key.namespace}/{key.name}/{uid}/{version}".encode()).digest()
        for i in range(4):
            word = int.from_bytes(total[8 * i : 8 * i + 8], "big")
            self._digest[i] = (self._digest[i] + sign * word) % 2**64


class _ResourceState:
    def __init__(self) -> None:
        self.rows: dict[Key, _Row] = {}
        self.snapshots: dict[str, _Snapshot] = {}
        self._newest: dict[str, _Snapshot] = {}  # that has ended, by namespace; "" for all

    def snapshot(self, id: str) -> _Snapshot:
        return self.snapshots.setdefault(id, _Snapshot(id))

    def apply_object(self, record: dict) -> None:
        key = Key(record.get("namespace", ""), record.get("name", ""))
        old = self.rows.get(key)
        if old is not None and old.should_drop(record):
            return
        deleted = record["type"] == "deleted"
        if not deleted and not isinstance(record.get("after"), dict):
            raise InvalidRecord(f"record {record['id']} of type {record['type']} has no object")
        row = _Row(
            record["id"], record.get("uid", ""), record.get("resourceVersion", ""), deleted, record.get("after"),
            _read_version(record), record.get("observedAt", ""),
        )  # 3
        if old is not None:
            row.snapshot_id = old.snapshot_id
        row.uncertain = deleted and bool(record.get("coalesced"))
        if record.get("snapshot"):
            row.snapshot_id = record["snapshot"]["id"]
            self.snapshot(row.snapshot_id).record_version(key, row)
        if self._is_superseded(key, row):
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def _is_superseded(self, key: Key, row: _Row) -> bool:
        """Report whether a row is of a partition that is read later, or repeated, and the end of a snapshot lacks it (8)."""
        ends = (self._newest.get(namespace) for namespace in {"", key.namespace})
        return not row.deleted and any(end is not None and end.supersedes(key, row) for end in ends)

    def apply_snapshot_end(self, record: dict) -> None:
        """Remove the objects that the snapshot lacks and that were read before it (8)."""
        one = self.snapshot(record["snapshot"]["id"])
        if one.end is not None:
            return
        one.namespace, one.end = record.get("namespace", ""), record["snapshot"]
        one.position, one.ended_at = one.end.get("position", ""), record.get("observedAt", "")
        last = self._newest.get(one.namespace)
        if last is None or _is_read_before(last.position, one.position, last.ended_at, one.ended_at):
            self._newest[one.namespace] = one
        self.rows = {key: row for key, row in self.rows.items() if row.deleted or not one.supersedes(key, row)}
        one.verify()

    def apply_gap(self, gap: dict) -> None:
        """Lower all versions to the end of a gap that ends before it starts: the cluster was restored from a backup (7)."""
        to = gap.get("to", "")
        if _compare(to, gap.get("from", "")) >= 0:
            return
        for row in self.rows.values():
            row.resource_version = _lower(row.resource_version, to)
            row.read_version = _lower(row.read_version, to)
        for one in self.snapshots.values():
            one.position = _lower(one.position, to)


def _read_version(record: dict) -> str:
    """Return the version of the cluster at which the record was read (8); "" for a list that 0.9.0 has read."""
    listed = record.get("coalesced") or record.get("snapshot") or record["type"] == "sync"
    if listed or record.get("listVersion"):
        return record.get("listVersion", "")
    return record.get("resourceVersion", "")


def _is_read_before(a: str, b: str, observed_a: str, observed_b: str) -> bool:
    """Order by the versions of the cluster; by clocks only if these are equal, unknown or without an order (8)."""
    order = _compare(a, b)
    return order < 0 or order == 0 and _time(observed_a) < _time(observed_b)


def _time(observed_at: str) -> tuple[str, str]:
    """Return a time in UTC of RFC 3339 in a form that can be compared."""
    seconds, _, fraction = observed_at.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")


def _compare(a: str, b: str) -> int:
    """Order two resourceVersions: by length, then as text (4). 0 if they are equal or one is no growing integer."""
    if not _is_ordered(a) or not _is_ordered(b):
        return 0
    x, y = (len(a), a), (len(b), b)
    return (x > y) - (x < y)


def _is_ordered(version: str) -> bool:
    return version.isascii() and version.isdigit() and version[0] != "0"


def _lower(version: str, to: str) -> str:
    return to if _compare(version, to) > 0 else version


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
