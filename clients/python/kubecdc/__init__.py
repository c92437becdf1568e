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
import re
import typing

__all__ = [
    "ABSENT", "Actor", "Author", "ChangedAt", "ChangedMember", "Claimed", "DeadLetter", "Difference", "Gap", "GapMember",
    "Identity", "InvalidRecord", "Key", "Object", "Record", "ReplayMember", "Resource", "SnapshotMember", "SnapshotStatus", "Table",
    "WatermarkMember", "WatermarkStatus", "changed", "encode", "parse",
]


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
    """An existing object. record is the one that set it, as it was read: what is not decoded costs no collection of garbage."""

    key: Key
    uid: str
    resource_version: str
    record: Record | bytes | str

    @property
    def body(self) -> dict:
        """Decode the object."""
        record = self.record if isinstance(self.record, dict) else _decode(self.record)
        return record["after"]


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()  # the value of a member that is not there; None is null


class Difference(typing.NamedTuple):
    """Where an update changed its object. before and after are ABSENT if the value was added or removed, or is in omitted."""

    path: str
    before: object = ABSENT
    after: object = ABSENT
    index: int | None = None
    omitted: tuple[str, ...] = ()


class ChangedAt(typing.TypedDict, total=False):
    """The member changedAt: the change was made between notBefore, if it is there, and at."""

    at: str
    notBefore: str
    source: str


class Actor(typing.TypedDict, total=False):
    """The member actor: the field manager of a write, by the name that it gave itself."""

    manager: str
    operation: str
    subresource: str
    time: str


class Claimed(typing.TypedDict, total=False):
    """What the client of a request chose."""

    userAgent: str
    sourceIPs: list[str]
    auditID: str


class Identity(typing.TypedDict, total=False):
    """The authenticated user of a request."""

    user: str
    uid: str
    groups: list[str]
    impersonator: str
    impersonationConstraint: str
    verb: str
    subresource: str
    received: str
    claimed: Claimed


class Author(Identity, total=False):
    """The member by: the author of a change, or the reason why none is named."""

    unknown: str


class SnapshotMember(typing.TypedDict, total=False):
    """The member snapshot. All but id are set only on snapshot.end and partial.end."""

    id: str
    position: str
    count: int
    digest: str


class WatermarkMember(typing.TypedDict, total=False):
    """The member watermark. count and digest are there if algorithm is."""

    epoch: str
    sequence: int
    lane: int
    lanes: int
    algorithm: str
    count: int
    digest: str


class ReplayMember(typing.TypedDict, total=False):
    """The member replay: of a record that is emitted again of and type, of the end of a replay the rest."""

    id: str
    of: str
    type: str
    state: str
    count: int
    reason: str


class DeadLetter(typing.TypedDict, total=False):
    """The member deadLetter: the sink that could not deliver the record, and why."""

    sink: str
    reason: str


# Names that are keywords of Python need this form.
GapMember = typing.TypedDict("GapMember", {"from": str, "to": str, "reason": str}, total=False)
ChangedMember = typing.TypedDict(
    "ChangedMember", {"path": str, "from": object, "to": object, "index": int, "omitted": list[str]}, total=False
)
_Keywords = typing.TypedDict("_Keywords", {"class": str}, total=False)


class Record(_Keywords, total=False):
    """A native object, with each member that docs/events-reference.md lists. What is absent is not there."""

    id: str
    type: str
    cluster: str
    group: str
    version: str
    resource: str
    kind: str
    namespace: str
    name: str
    uid: str
    resourceVersion: str
    listVersion: str
    generation: int
    observedAt: str
    changedAt: ChangedAt
    delta: str
    coalesced: bool
    finalStateUnknown: bool
    left: bool
    redactionChanged: bool
    actor: Actor
    snapshot: SnapshotMember
    gap: GapMember
    watermark: WatermarkMember
    replay: ReplayMember
    of: str
    by: Author
    requestedBy: Identity
    certainty: str
    deadLetter: DeadLetter
    omitted: list[str]
    changed: list[typing.Union[str, ChangedMember]]  # see changed()
    before: dict
    after: dict


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


class WatermarkStatus(typing.NamedTuple):
    """How far a table is complete: it has had every change of the resource, or of its namespace, up to position.

    check is "equal" if the table then held exactly the objects of the cluster, "different" if not, and "not made" if the
    watermark has no digest, or the table was past the position in some lane. different counts such checks so far.
    """

    resource: Resource
    namespace: str
    position: str
    epoch: str
    sequence: int
    check: str
    different: int


def parse(value: bytes | str) -> Record:
    """Decode one native object. Unknown members and types are kept; Table.apply ignores them.

    A table keeps the record as it was read here, and not what is changed in it before apply.
    """
    try:
        record = _decode(value)
    except ValueError:
        raise InvalidRecord("not a native object: no JSON") from None
    if not isinstance(record, dict) or not _is_text(record.get("id")) or not _is_text(record.get("type")):
        raise InvalidRecord("not a native object: no id or no type")
    required = {"snapshot.begin": "snapshot", "snapshot.end": "snapshot", "gap": "gap", "watermark": "watermark"}.get(record["type"])
    if required and not isinstance(record.get(required), dict):
        raise InvalidRecord(f"record {record['id']} lacks the member that its type {record['type']} requires")
    parsed = _Parsed(record)
    parsed.text = value
    return parsed


class _Parsed(dict):
    """A record with its text."""

    __slots__ = ("text",)


def changed(record: Record) -> list[Difference]:
    """Return the member changed of a decoded record; differences of a list of paths have nothing else."""
    return [
        Difference(one)
        if isinstance(one, str)
        else Difference(one["path"], one.get("from", ABSENT), one.get("to", ABSENT), one.get("index"), tuple(one.get("omitted", ())))
        for one in record.get("changed", ())
    ]


def encode(value: object) -> str:
    """Encode a value as JSON, at any depth: json.dumps fails on the bodies of objects that are nested deeply."""
    text: list[str] = []
    pending: list[object] = [value]  # a _Text is written as it is
    while pending:
        one = pending.pop()
        if isinstance(one, _Text):
            text.append(one)
        elif isinstance(one, dict):
            pending.append(_Text("}"))
            members = [(_Text(("," if i else "{") + json.dumps(name) + ":"), item) for i, (name, item) in enumerate(one.items())]
            for name, item in reversed(members):
                pending += [item, name]
            text += [] if one else ["{"]
        elif isinstance(one, list):
            pending.append(_Text("]"))
            for i in range(len(one) - 1, -1, -1):
                pending += [one[i], _Text("," if i else "[")]
            text += [] if one else ["["]
        else:
            text.append(json.dumps(one))
    return "".join(text)


class _Text(str):
    """A part of JSON that is written already."""


def _decode(value: bytes | str) -> object:
    """Decode JSON at any depth: json.loads fails at some hundred levels, and API servers accept some 9,990."""
    try:
        return json.loads(value)
    except RecursionError:
        return _decode_deep(value if isinstance(value, str) else value.decode(json.detect_encoding(value)))


_skip_space = re.compile(r"[ \t\r\n]*").match
_decode_scalar = json.JSONDecoder().raw_decode


def _decode_deep(text: str) -> object:
    """Decode JSON without recursion. Containers that are not complete are on a stack, each with the name of its next member."""
    containers: list[dict | list] = []
    names: list[str | None] = []
    at = _skip_space(text, 0).end()
    while True:
        value: object
        if text[at : at + 1] in ("{", "["):
            container: dict | list = {} if text[at] == "{" else []
            at = _skip_space(text, at + 1).end()
            if text[at : at + 1] != ("}" if isinstance(container, dict) else "]"):
                containers.append(container)
                name, at = _decode_name(text, at) if isinstance(container, dict) else (None, at)
                names.append(name)
                continue
            value, at = container, at + 1
        else:
            value, at = _decode_scalar(text, at)
        while containers:  # the value is complete: it belongs to the innermost container, which it may complete
            container = containers[-1]
            if isinstance(container, dict):
                container[names[-1]] = value
            else:
                container.append(value)
            at = _skip_space(text, at).end()
            if text[at : at + 1] == ",":
                at = _skip_space(text, at + 1).end()
                if isinstance(container, dict):
                    names[-1], at = _decode_name(text, at)
                break
            if text[at : at + 1] != ("}" if isinstance(container, dict) else "]"):
                raise ValueError("malformed JSON")
            value, at = container, at + 1
            containers.pop(), names.pop()
        if not containers:
            if _skip_space(text, at).end() != len(text):
                raise ValueError("malformed JSON")
            return value


def _decode_name(text: str, at: int) -> tuple[str, int]:
    """Decode the name of a member, and return it with the index of the value."""
    if text[at : at + 1] != '"':
        raise ValueError("malformed JSON")
    name, at = _decode_scalar(text, at)
    at = _skip_space(text, at).end()
    if text[at : at + 1] != ":":
        raise ValueError("malformed JSON")
    return name, _skip_space(text, at + 1).end()


class Table:
    """The existing objects according to the stream.

    It also keeps the newest version of deleted objects, because records can be repeated: see remove_deleted.
    """

    def __init__(self) -> None:
        self._resources: dict[Resource, _ResourceState] = {}
        self.gaps: list[Gap] = []

    def apply(self, record: Record) -> None:
        """Apply the next record, as parse returns it. Unknown types are ignored, because new types may be added (9)."""
        resource = Resource(record.get("cluster", ""), record.get("group", ""), record.get("resource", ""))
        kind = record["type"]
        if "deadLetter" in record:  # 9
            return
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
        elif kind == "watermark":
            self._state(resource).apply_watermark(record)

    def get(self, resource: Resource, key: Key) -> Object | None:
        """Return an object, or None if it does not exist."""
        row = self._state(resource).rows.get(key)
        if row is None or row.deleted:
            return None
        return Object(key, row.uid, row.resource_version, row.record)

    def objects(self, resource: Resource) -> typing.Iterator[Object]:
        """Iterate over all existing objects of a resource, in no particular order."""
        for key, row in self._state(resource).rows.items():
            if not row.deleted:
                yield Object(key, row.uid, row.resource_version, row.record)

    def resources(self) -> list[Resource]:
        """Return all resources of which a record was applied."""
        return list(self._resources)

    def snapshots(self) -> typing.Iterator[SnapshotStatus]:
        """Iterate over all snapshots received, in no particular order."""
        for resource, state in self._resources.items():
            for one in state.snapshots.values():
                yield SnapshotStatus(resource, one.namespace, one.id, one.end is not None, one.verified)

    def watermarks(self) -> typing.Iterator[WatermarkStatus]:
        """Iterate over the newest watermark of each scope that was read from all lanes, in no particular order."""
        for resource, state in self._resources.items():
            for namespace, scope in state.scopes.items():
                if scope.complete is not None:
                    one = scope.complete
                    yield WatermarkStatus(
                        resource, namespace, one.position, one.epoch, one.sequence, scope.check, scope.different
                    )

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
    record: Record | bytes | str | None  # that set the object; its text if it was parsed
    read_version: str  # of the cluster, when the record was read (8)
    observed_at: str
    peak: str = ""  # the newest version of the cluster that a record of the key was read at
    behind: bool = False  # the row is older than peak: records are being repeated
    emitted: str = ""  # resource_version as it was emitted; a gap may lower that of the row
    snapshot_id: str | None = None  # the last snapshot that contained this key (6)
    uncertain: bool = False  # deleted, but the version may be of another state: history was lost (5)

    def was_read_after(self, record: dict) -> bool:
        """Report whether the row was read after a record by both clocks, and is newer (10).

        Then the record is of a partition that is read later: the topic has grown, and the object has moved.
        """
        if _time(record.get("observedAt", "")) >= _time(self.observed_at):
            return False
        by_version, read = _compare(record.get("resourceVersion", ""), self.resource_version), _read_version(record)
        if not _is_ordered(read) or not _is_ordered(self.read_version):
            return by_version < 0
        by_read = _compare(read, self.read_version)
        return by_read <= 0 and (self.deleted or by_version < 0 or by_version == 0 and by_read < 0)

    def should_drop(self, record: dict) -> bool:
        """Report whether a record is older than the row, which has another one."""
        snapshot = record.get("snapshot")
        if record.get("coalesced") or snapshot and snapshot["id"] != self.snapshot_id:  # 5, 6
            return False
        version = record.get("resourceVersion", "")
        if self.deleted and not snapshot and (record.get("uid", ""), version) == (self.uid, self.resource_version):  # 4
            return True
        return not self.uncertain and _compare(version, self.resource_version) < 0  # 4, 5


_DIGEST_ALGORITHM = "sha256-sum64/1"  # the only one that this version knows
_MAX_PENDING_WATERMARKS = 1024  # of a scope; beyond it the oldest is dropped


class _Sum:
    """The number of existing objects, and the digest over them: a sum of hashes, word by word and modulo 2**64."""

    def __init__(self) -> None:
        self.count = 0
        self.words = [0, 0, 0, 0]

    def copy(self) -> _Sum:
        other = _Sum()
        other.count, other.words = self.count, list(self.words)
        return other

    def add(self, other: _Sum, sign: int = 1) -> None:
        """Add another sum, or subtract it if sign is -1."""
        self.count += sign * other.count
        self.words = [(a + sign * b) % 2**64 for a, b in zip(self.words, other.words)]

    def add_object(self, key: Key, uid: str, version: str, sign: int) -> None:
        total = hashlib.sha256(f"{key.namespace}/{key.name}/{uid}/{version}".encode()).digest()
        for i in range(4):
            word = int.from_bytes(total[8 * i : 8 * i + 8], "big")
            self.words[i] = (self.words[i] + sign * word) % 2**64
        self.count += sign

    def replace(self, key: Key, old: _Row | None, now: _Row | None) -> None:
        """Replace the row of a key; None is none."""
        if old is not None and not old.deleted:
            self.add_object(key, old.uid, old.emitted, -1)
        if now is not None and not now.deleted:
            self.add_object(key, now.uid, now.emitted, 1)

    def digest(self) -> str:
        return "".join(f"{word:016x}" for word in self.words)


class _Watermark:
    """A watermark that some lanes have. It is compared with the objects as they were at its position."""

    def __init__(self, record: dict, scope: _Scope) -> None:
        member = record["watermark"]
        self.epoch, self.sequence = member.get("epoch", ""), member.get("sequence", 0)
        self.lanes, self.seen = member.get("lanes", 1), set()
        self.number = scope.started
        self.position = record.get("resourceVersion", "")
        self.reach = self.position  # the newest so far; "" if there is none that can be compared, or none is checked
        self.sum = scope.sum.copy()  # without late, its own and that of those before it
        self.sum.add(scope.late, -1)
        # Late is of what was read since, from lanes that do not have the watermark yet, and that stands before it but not
        # before the previous one. It counts for this one and for all after it.
        self.late = _Sum()
        self.want = (member.get("count"), member.get("digest"))
        past = scope.highest != "" and (not _is_ordered(scope.highest) or _compare(scope.highest, self.position) > 0)
        self.unchecked = (
            member.get("algorithm") != _DIGEST_ALGORITHM or scope.behind > 0 or past or not _is_ordered(self.position)
        )


class _Scope:
    """The watermarks of a resource or of one namespace of it. The sum over its rows is kept from the first one on."""

    def __init__(self, rows: typing.Iterable[tuple[Key, _Row]]) -> None:
        self.sum = _Sum()
        self.behind = 0  # rows that are older than they were
        self.highest = ""  # the newest version of the cluster that a record of the scope was read at
        self.pending: list[_Watermark] = []  # in the order of their first copies, which is that of reach
        self.late = _Sum()  # of all pending ones
        self.started = 0  # number of pending watermarks so far
        self._skipped = 0  # those with a number up to this are not checked
        self.complete: _Watermark | None = None
        self.check = ""
        self.different = 0
        self._past: dict[str, int] = {}  # by epoch, the newest sequence that is complete, or was dropped
        self.recompute(rows)

    def recompute(self, rows: typing.Iterable[tuple[Key, _Row]]) -> None:
        self.sum, self.behind, self.highest = _Sum(), 0, ""
        for key, row in rows:
            self.sum.replace(key, None, row)
            self.highest = _later(self.highest, row.peak)
            self.behind += row.behind

    def apply(self, record: dict) -> None:
        """Apply a copy of a watermark. The first lane that has it is read the furthest: no lane is past the position."""
        member = record["watermark"]
        epoch, sequence, lanes = member.get("epoch", ""), member.get("sequence", 0), member.get("lanes", 1)
        if self._is_past(epoch, sequence):
            return
        for at, one in enumerate(self.pending):
            if (one.epoch, one.sequence, one.lanes) == (epoch, sequence, lanes):
                break
        else:
            one = self._start(record)
            at = len(self.pending) - 1
        one.seen.add(member.get("lane", 0))
        if len(one.seen) < one.lanes:
            return
        one.sum.add(self._remove(at))
        self._mark_past(one)
        self.complete, self.check = one, "not made"
        if not one.unchecked and one.number > self._skipped:
            self.check = "equal" if one.want == (one.sum.count, one.sum.digest()) else "different"
            self.different += self.check == "different"

    def _start(self, record: dict) -> _Watermark:
        """Begin with the first copy of a watermark."""
        if len(self.pending) == _MAX_PENDING_WATERMARKS:
            self._mark_past(self.pending[0])
            self._remove(0)
        self.started += 1
        one = _Watermark(record, self)
        if self.pending:
            last = self.pending[-1]
            if not _is_ordered(one.position):
                one.reach = last.reach
            elif _is_ordered(last.reach) and _compare(last.reach, one.position) > 0:  # a restored backup has lower versions
                self._skipped = last.number
                for before in self.pending:
                    before.reach = ""
        self.pending.append(one)
        return one

    def _remove(self, at: int) -> _Sum:
        """Remove a pending watermark and those before it, which are complete, too, or never will be.

        Those of more lanes are later, and stay: the topic has grown, and its new partition may be read first. It returns what
        was read late for the watermark.
        """
        late, removed, left, lanes = _Sum(), _Sum(), [], self.pending[at].lanes
        for one in self.pending[: at + 1]:
            late.add(one.late)
            if one.lanes > lanes:
                one.sum.add(removed)
                left.append(one)
            else:
                removed.add(one.late)
        after = self.pending[at + 1 :]
        if after:
            after[0].late.add(removed)
        else:
            self.late.add(removed, -1)
        self.pending = left + after
        return late

    def _mark_past(self, one: _Watermark) -> None:
        """Let further copies of a watermark, and of those shortly before it in its epoch, be ignored."""
        if not self._is_past(one.epoch, one.sequence):
            self._past[one.epoch] = one.sequence

    def _is_past(self, epoch: str, sequence: int) -> bool:
        """Return whether a watermark is complete or was dropped. One far before those is a new one."""
        past = self._past.get(epoch, 0)
        return sequence == 0 or past - _MAX_PENDING_WATERMARKS < sequence <= past

    def skip_checks_between(self, dropped: str, peak: str) -> None:
        """Leave the pending watermarks unchecked that stand behind a dropped record and before that of the row.

        What the object was at their positions is not known.
        """
        behind = self._first(lambda reach: _compare(reach, peak) > 0)
        if behind > 0 and _compare(dropped, self.pending[behind - 1].reach) <= 0:
            self._skipped = max(self._skipped, self.pending[behind - 1].number)

    def _first(self, holds: typing.Callable[[str], bool]) -> int:
        """Return the first pending watermark whose reach has a property, which all after it have, too."""
        first, end = 0, len(self.pending)  # by binary search: bisect has no key before Python 3.10
        while first < end:
            middle = (first + end) // 2
            if holds(self.pending[middle].reach):
                end = middle
            else:
                first = middle + 1
        return first

    def skip_checks(self) -> None:
        """Leave the pending watermarks unchecked."""
        self._skipped = self.started

    def update(self, key: Key, old: _Row | None, now: _Row, is_certain: bool) -> None:
        """Replace the row of a key. Unless it is certain which watermarks the record stands before, no check is made."""
        self.highest = _later(self.highest, now.peak)
        self.behind += now.behind - (old is not None and old.behind)
        same = old is not None and (old.uid, old.emitted, old.deleted) == (now.uid, now.emitted, now.deleted)
        if same or old is None and now.deleted:
            return
        change = _Sum()
        change.replace(key, old, now)
        self.sum.add(change)
        if not is_certain or now.behind or not _is_ordered(now.peak):
            self.skip_checks()
            return
        first = self._first(lambda reach: _is_ordered(reach) and _compare(reach, now.peak) >= 0)
        if first < len(self.pending):
            self.pending[first].late.add(change)
            self.late.add(change)


@dataclasses.dataclass
class _Listed:
    """A version of an object in a snapshot."""

    uid: str
    version: str
    deleted: bool
    observed_at: tuple[str, str]

    @staticmethod
    def of(record: dict) -> _Listed:
        deleted, at = record["type"] == "deleted", _time(record.get("observedAt", ""))
        return _Listed(record.get("uid", ""), record.get("resourceVersion", ""), deleted, at)


class _Snapshot:
    """One snapshot. It keeps the listed versions until count and digest are verified."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.namespace = ""  # for all namespaces
        self.end: dict | None = None
        self.position = ""  # of the end, unless a gap has lowered it (7)
        self.ended_at = ""
        self.verified = False
        self.listed: dict[Key, _Listed] = {}  # the newest of each object; empty once verified
        self._existing = 0  # of listed: those that are not deleted
        self._digest = [0, 0, 0, 0]

    def supersedes(self, key: Key, row: _Row) -> bool:
        """Report whether the snapshot would contain the object, in this or a later version, if it still existed (8)."""
        return (
            row.snapshot_id != self.id
            and self.namespace in ("", key.namespace)
            and _compare(row.resource_version, self.position) <= 0
            and _is_read_before(row.read_version, self.position, row.observed_at, self.ended_at)
        )

    def record_listed(self, key: Key, now: _Listed) -> None:
        """Record the newest version of an object in the snapshot."""
        if self.verified:
            return
        old = self.listed.get(key)
        if old is not None and not old.deleted:
            self._add(key, old.uid, old.version, sign=-1)
        self.listed[key] = now
        if not now.deleted:
            self._add(key, now.uid, now.version, sign=1)
        self.verify()

    def verify(self) -> None:
        """Compare count and digest with the end. A mismatch may be temporary: other partitions can lag behind."""
        if self.end is None or self._existing != self.end.get("count"):
            return
        if "".join(f"{word:016x}" for word in self._digest) == self.end.get("digest"):
            self.verified, self.listed = True, {}

    def _add(self, key: Key, uid: str, version: str, sign: int) -> None:
        total = hashlib.sha256(f"{key.namespace}/{key.name}/{uid}/{version}".encode()).digest()
        for i in range(4):
            word = int.from_bytes(total[8 * i : 8 * i + 8], "big")
            self._digest[i] = (self._digest[i] + sign * word) % 2**64
        self._existing += sign


class _ResourceState:
    def __init__(self) -> None:
        self.rows: dict[Key, _Row] = {}
        self.snapshots: dict[str, _Snapshot] = {}
        self.scopes: dict[str, _Scope] = {}  # by namespace; "" for all; only those that have watermarks
        self._newest: dict[str, _Snapshot] = {}  # that has ended, by namespace; "" for all

    def snapshot(self, id: str) -> _Snapshot:
        return self.snapshots.setdefault(id, _Snapshot(id))

    def apply_object(self, record: dict) -> None:
        key = Key(record.get("namespace", ""), record.get("name", ""))
        old = self.rows.get(key)
        if old is not None:
            if record["id"] == old.id:  # 4
                return
            late = old.was_read_after(record)  # 10
            if late:
                self._record_dropped(key, old, record)
            if late or old.should_drop(record):
                self._skip_checks_at(key, old, record)
                return
        deleted = record["type"] == "deleted"
        if not deleted and not isinstance(record.get("after"), dict):
            raise InvalidRecord(f"record {record['id']} of type {record['type']} has no object")
        row = _Row(
            record["id"], record.get("uid", ""), record.get("resourceVersion", ""), deleted,
            None if deleted else getattr(record, "text", record),
            _read_version(record), record.get("observedAt", ""),
        )  # 3
        at = _later(row.read_version, row.resource_version)
        row.peak, row.emitted = at, row.resource_version
        if old is not None:
            row.snapshot_id, row.peak = old.snapshot_id, _later(old.peak, at)
            row.behind = row.peak != at and (not _is_listed(record) or bool(record.get("listVersion")))
        row.uncertain = deleted and bool(record.get("coalesced"))
        if record.get("snapshot"):
            row.snapshot_id = record["snapshot"]["id"]
            self.snapshot(row.snapshot_id).record_listed(key, _Listed.of(record))
        if self._is_superseded(key, row):
            self._remove(key)
            return
        for scope in self._scopes_of(key):
            scope.update(key, old, row, not _is_listed(record))
        self.rows[key] = row

    def _record_dropped(self, key: Key, old: _Row, record: dict) -> None:
        """Record for its snapshot a record that is dropped because the row was read after it."""
        if not record.get("snapshot"):
            return
        id = record["snapshot"]["id"]
        if old.snapshot_id is None:
            old.snapshot_id = id
        one, now = self.snapshot(id), _Listed.of(record)
        if key not in one.listed or now.observed_at >= one.listed[key].observed_at:
            one.record_listed(key, now)

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
        for key in [key for key, row in self.rows.items() if not row.deleted and one.supersedes(key, row)]:
            self._remove(key)
        self._skip_checks()
        one.verify()

    def apply_watermark(self, record: dict) -> None:
        namespace = record.get("namespace", "")
        if namespace not in self.scopes:
            self.scopes[namespace] = _Scope(self._rows_of(namespace))
        self.scopes[namespace].apply(record)

    def _remove(self, key: Key) -> None:
        """Remove the row of an object that the end of a snapshot lacks."""
        old = self.rows.pop(key, None)
        if old is not None:
            gone = dataclasses.replace(old, deleted=True, behind=False, peak="")
            for scope in self._scopes_of(key):
                scope.update(key, old, gone, False)

    def _skip_checks(self) -> None:
        """Leave the pending watermarks unchecked, because objects may be gone without a record of their own."""
        for scope in self.scopes.values():
            scope.skip_checks()

    def _skip_checks_at(self, key: Key, old: _Row, dropped: dict) -> None:
        at = _later(_read_version(dropped), dropped.get("resourceVersion", ""))
        for scope in self._scopes_of(key):
            scope.skip_checks_between(at, old.peak)

    def _scopes_of(self, key: Key) -> list[_Scope]:
        return [self.scopes[namespace] for namespace in {"", key.namespace} if namespace in self.scopes]

    def _rows_of(self, namespace: str) -> typing.Iterator[tuple[Key, _Row]]:
        return ((key, row) for key, row in self.rows.items() if namespace in ("", key.namespace))

    def apply_gap(self, gap: dict) -> None:
        """Lower all versions to the end of a gap that ends before it starts: the cluster was restored from a backup (7)."""
        to = gap.get("to", "")
        if _compare(to, gap.get("from", "")) >= 0:
            return
        for row in self.rows.values():
            row.resource_version = _lower(row.resource_version, to)
            if row.read_version == to or _compare(row.read_version, to) > 0:
                row.read_version, row.observed_at = to, ""  # before whatever is read at that version, by any clock
            row.peak, row.behind = _lower(row.peak, to), False
        for one in self.snapshots.values():
            if one.position == to or _compare(one.position, to) > 0:
                one.position, one.ended_at = to, ""
        for namespace, scope in self.scopes.items():
            scope.recompute(self._rows_of(namespace))
        self._skip_checks()


def _read_version(record: dict) -> str:
    """Return the version of the cluster at which the record was read (8); "" for a list that 0.9.0 has read."""
    if _is_listed(record):
        return record.get("listVersion", "")
    return record.get("resourceVersion", "")


def _is_listed(record: dict) -> bool:
    """Report whether a list showed the record, not a watch."""
    return bool(
        record.get("listVersion") or record.get("coalesced") or record.get("snapshot") or record["type"] == "sync"
    )


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


def _later(a: str, b: str) -> str:
    """Return the later of two versions; the second if they have no order."""
    return a if b == "" or _compare(a, b) > 0 else b


def _lower(version: str, to: str) -> str:
    return to if _compare(version, to) > 0 else version


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
