package io.kubecdc.consumer;

import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * The existing objects according to the stream, by the rules of docs/consuming.md, whose numbers are in comments. It also
 * keeps the newest version of deleted objects, because records can be repeated: see {@link #removeDeleted}.
 *
 * <p>The records of one object must be in order, as in a Kafka partition, a JetStream stream or a file; different objects and
 * partitions may be read in any order. Repeated records change nothing. Not safe for concurrent use; it does no I/O.
 */
public final class Table {
    /** A resource of a cluster, independent of the version in which it is served. */
    public record Resource(String cluster, String group, String resource) {}

    /** An object by name. An object that is deleted and created again has the same key. */
    public record Key(String namespace, String name) {}

    /** An existing object. The body is JSON, unchanged. */
    public record ExistingObject(Key key, String uid, String resourceVersion, String body) {}

    /** Lost history of a resource. The differences follow: the table is correct again once they have been applied. */
    public record ResourceGap(Resource resource, Change.Gap gap) {}

    /** A snapshot. It is verified if count and digest match its end, and not while other partitions lag behind. */
    public record SnapshotStatus(Resource resource, String namespace, String id, boolean ended, boolean verified) {}

    /**
     * How far the table is complete: it has had every change of the resource, or of its namespace, up to the position. The check
     * is "equal" if the table then held exactly the objects of the cluster, "different" if not, and "not made" if the watermark
     * has no digest, or the table was past the position in some lane. Different is the number of such checks so far.
     */
    public record WatermarkStatus(Resource resource, String namespace, String position, String epoch, long sequence, String check,
            long different) {}

    private final Map<Resource, ResourceState> resources = new HashMap<>();
    private final List<ResourceGap> gaps = new ArrayList<>();

    /** Applies the next record. Unknown types are ignored, because new types may be added (9). */
    public void apply(Change change) {
        if (change.deadLetter() != null) { // 9
            return;
        }
        if (Change.OBJECT_TYPES.contains(change.type())) {
            stateOf(change.resource()).applyObject(change);
            return;
        }
        switch (change.type()) {
            case "snapshot.begin":
                stateOf(change.resource()).snapshotFor(change.snapshot().id()).namespace = change.key().namespace();
                break;
            case "snapshot.end":
                stateOf(change.resource()).applySnapshotEnd(change);
                break;
            case "gap":
                gaps.add(new ResourceGap(change.resource(), change.gap()));
                stateOf(change.resource()).applyGap(change.gap());
                break;
            case "watermark":
                stateOf(change.resource()).applyWatermark(change);
                break;
            default: // 9
        }
    }

    /** Returns an object; empty if it does not exist. */
    public Optional<ExistingObject> get(Resource resource, Key key) {
        Row row = stateOf(resource).rows.get(key);
        return row == null || row.deleted ? Optional.empty() : Optional.of(row.toObject(key));
    }

    /** Returns all existing objects of a resource, in no particular order. */
    public List<ExistingObject> objects(Resource resource) {
        List<ExistingObject> all = new ArrayList<>();
        stateOf(resource).rows.forEach((key, row) -> {
            if (!row.deleted) {
                all.add(row.toObject(key));
            }
        });
        return all;
    }

    /** Returns all resources of which a record was applied. */
    public Set<Resource> resources() {
        return Set.copyOf(resources.keySet());
    }

    /** Returns all gaps in the order received. */
    public List<ResourceGap> gaps() {
        return List.copyOf(gaps);
    }

    /** Returns all snapshots received, in no particular order. */
    public List<SnapshotStatus> snapshots() {
        List<SnapshotStatus> all = new ArrayList<>();
        resources.forEach((resource, state) -> state.snapshots.values().forEach(
                one -> all.add(new SnapshotStatus(resource, one.namespace, one.id, one.end != null, one.verified))));
        return all;
    }

    /** Returns the newest watermark of each scope that was read from all lanes, in no particular order. */
    public List<WatermarkStatus> watermarks() {
        List<WatermarkStatus> all = new ArrayList<>();
        resources.forEach((resource, state) -> state.scopes.forEach((namespace, scope) -> {
            if (scope.complete != null) {
                all.add(new WatermarkStatus(resource, namespace, scope.complete.position, scope.complete.member.epoch(),
                        scope.complete.member.sequence(), scope.check, scope.different));
            }
        }));
        return all;
    }

    /**
     * Drops what is kept of deleted objects, to bound the memory of a long-lived table. Call it when the records read so far
     * can no longer be repeated, for example a day after a restart of the exporter.
     */
    public void removeDeleted() {
        resources.values().forEach(state -> state.rows.values().removeIf(row -> row.deleted));
    }

    private ResourceState stateOf(Resource resource) {
        return resources.computeIfAbsent(resource, name -> new ResourceState());
    }

    /** The newest record of one key (2, 4). It is kept after the object is deleted. */
    private static final class Row {
        final String id;
        final String uid;
        final String body;
        String observedAt; // empty where a gap has lowered readVersion (7)
        final boolean deleted;
        final boolean uncertain; // deleted, but the version may be of another state: history was lost (5)
        String resourceVersion;
        String readVersion; // of the cluster, when the record was read (8)
        String snapshotID; // the last snapshot that contained this key (6); null if there is none
        final String emitted; // resourceVersion as it was emitted; a gap may lower that of the row
        String peak; // the newest version of the cluster that a record of the key was read at
        boolean behind; // the row is older than peak: records are being repeated

        Row(Change change, Row old) {
            id = change.id();
            uid = change.uid();
            body = change.body();
            observedAt = change.observedAt();
            deleted = change.type().equals("deleted");
            uncertain = deleted && change.coalesced();
            resourceVersion = change.resourceVersion();
            readVersion = change.readVersion();
            if (change.snapshot() != null) {
                snapshotID = change.snapshot().id();
            } else if (old != null) {
                snapshotID = old.snapshotID;
            }
            emitted = resourceVersion;
            String at = later(readVersion, resourceVersion);
            peak = old == null ? at : later(old.peak, at);
            behind = !peak.equals(at) && (!change.isListed() || !change.listVersion().isEmpty());
        }

        ExistingObject toObject(Key key) {
            return new ExistingObject(key, uid, resourceVersion, body);
        }

        /**
         * Reports whether the row was read after a change by both clocks, and is newer (10): the change is of a partition that
         * is read later, because the topic has grown and the object has moved.
         */
        boolean wasReadAfter(Change change) {
            if (normalizeTime(change.observedAt()).compareTo(normalizeTime(observedAt)) >= 0) {
                return false;
            }
            int byVersion = compare(change.resourceVersion(), resourceVersion);
            if (!isOrdered(change.readVersion()) || !isOrdered(readVersion)) {
                return byVersion < 0;
            }
            int byRead = compare(change.readVersion(), readVersion);
            return byRead <= 0 && (deleted || byVersion < 0 || byVersion == 0 && byRead < 0);
        }

        /** Reports whether a change is older than the row, which has another one. */
        boolean shouldDrop(Change change) {
            if (change.coalesced() || change.snapshot() != null && !change.snapshot().id().equals(snapshotID)) { // 5, 6
                return false;
            }
            if (deleted && change.snapshot() == null && change.uid().equals(uid)
                    && change.resourceVersion().equals(resourceVersion)) { // 4
                return true;
            }
            return !uncertain && compare(change.resourceVersion(), resourceVersion) < 0; // 4, 5
        }
    }

    private static final String DIGEST_ALGORITHM = "sha256-sum64/1"; // the only one that this version knows
    private static final int MAX_PENDING_WATERMARKS = 1024; // of a scope; beyond it the oldest is dropped

    /** The number of existing objects, and the digest over them: a sum of hashes, word by word. */
    private static final class Sum {
        long count;
        final long[] words = new long[4];

        Sum copy() {
            Sum other = new Sum();
            other.count = count;
            System.arraycopy(words, 0, other.words, 0, words.length);
            return other;
        }

        /** Adds another sum, or subtracts it if sign is -1. */
        void add(Sum other, int sign) {
            count += sign * other.count;
            for (int i = 0; i < words.length; i++) {
                words[i] += sign * other.words[i];
            }
        }

        void addObject(Key key, String uid, String version, int sign) {
            byte[] sum = sha256(key.namespace() + "/" + key.name() + "/" + uid + "/" + version);
            for (int i = 0; i < words.length; i++) {
                words[i] += sign * new BigInteger(1, java.util.Arrays.copyOfRange(sum, 8 * i, 8 * i + 8)).longValue();
            }
            count += sign;
        }

        /** Replaces the version of a key; null is none, or that of a deleted object. */
        void replace(Key key, Row old, Row now) {
            if (old != null && !old.deleted) {
                addObject(key, old.uid, old.emitted, -1);
            }
            if (now != null && !now.deleted) {
                addObject(key, now.uid, now.emitted, 1);
            }
        }

        String digest() {
            return String.format("%016x%016x%016x%016x", words[0], words[1], words[2], words[3]);
        }
    }

    /** A watermark that some lanes have. It is compared with the objects as they were at its position. */
    private static final class PendingWatermark {
        final Change.Watermark member;
        final long number;
        final String position;
        String reach; // the newest position so far; "" if there is none that can be compared, or none is checked
        final Set<Long> seen = new HashSet<>(); // lanes
        final Sum sum; // without late, its own and that of those before it
        // Of what was read since, from lanes that do not have the watermark yet, and that stands before it but not before the
        // previous one. It counts for this one and for all after it.
        final Sum late = new Sum();
        final boolean unchecked;

        PendingWatermark(Change change, WatermarkScope scope) {
            member = change.watermark();
            number = scope.started;
            position = change.resourceVersion();
            reach = position;
            sum = scope.sum.copy();
            sum.add(scope.late, -1);
            unchecked = !member.algorithm().equals(DIGEST_ALGORITHM) || scope.behind > 0 || !isOrdered(position)
                    || !scope.highest.isEmpty() && (!isOrdered(scope.highest) || compare(scope.highest, position) > 0);
        }

        boolean isSame(Change.Watermark other) {
            return member.epoch().equals(other.epoch()) && member.sequence() == other.sequence() && member.lanes() == other.lanes();
        }
    }

    /** The watermarks of a resource or of one namespace of it. The sum over its rows is kept from the first one on. */
    private static final class WatermarkScope {
        Sum sum = new Sum();
        int behind; // rows that are older than they were
        String highest = ""; // the newest version of the cluster that a record of the scope was read at
        PendingWatermark complete;
        String check = "";
        long different;
        List<PendingWatermark> pending = new ArrayList<>(); // in the order of their first copies, which is that of reach
        Sum late = new Sum(); // of all pending ones
        long started; // number of pending watermarks so far
        private long skipped; // those with a number up to this are not checked
        private final Map<String, Long> past = new HashMap<>(); // by epoch, the newest sequence that is complete or dropped

        /** Applies a copy. The first lane that has a watermark is read the furthest: no lane is past the position. */
        void apply(Change change) {
            Change.Watermark member = change.watermark();
            if (isPast(member)) {
                return;
            }
            int at = 0;
            while (at < pending.size() && !pending.get(at).isSame(member)) {
                at++;
            }
            if (at == pending.size()) {
                start(change);
                at = pending.size() - 1;
            }
            PendingWatermark one = pending.get(at);
            one.seen.add(member.lane());
            if (one.seen.size() < member.lanes()) {
                return;
            }
            one.sum.add(remove(at), 1);
            markPast(one);
            complete = one;
            check = "not made";
            if (!one.unchecked && one.number > skipped) {
                boolean equal = one.sum.count == one.member.count() && one.sum.digest().equals(one.member.digest());
                check = equal ? "equal" : "different";
                different += equal ? 0 : 1;
            }
        }

        /** Begins with the first copy of a watermark. */
        private void start(Change change) {
            if (pending.size() == MAX_PENDING_WATERMARKS) {
                markPast(pending.get(0));
                remove(0);
            }
            started++;
            PendingWatermark one = new PendingWatermark(change, this);
            if (!pending.isEmpty()) {
                PendingWatermark last = pending.get(pending.size() - 1);
                if (!isOrdered(one.position)) {
                    one.reach = last.reach;
                } else if (isOrdered(last.reach) && compare(last.reach, one.position) > 0) { // restored from a backup
                    skipped = last.number;
                    pending.forEach(before -> before.reach = "");
                }
            }
            pending.add(one);
        }

        /**
         * Removes a pending watermark and those before it, which are complete, too, or never will be. Those of more lanes are
         * later, and stay: the topic has grown, and its new partition may be read first. Returns what was read late for it.
         */
        private Sum remove(int at) {
            Sum sum = new Sum(), removed = new Sum();
            List<PendingWatermark> left = new ArrayList<>();
            for (PendingWatermark one : pending.subList(0, at + 1)) {
                sum.add(one.late, 1);
                if (one.member.lanes() > pending.get(at).member.lanes()) {
                    one.sum.add(removed, 1);
                    left.add(one);
                } else {
                    removed.add(one.late, 1);
                }
            }
            if (at + 1 < pending.size()) {
                pending.get(at + 1).late.add(removed, 1);
            } else {
                late.add(removed, -1);
            }
            left.addAll(pending.subList(at + 1, pending.size()));
            pending = left;
            return sum;
        }

        /** Lets further copies of a watermark, and of those shortly before it in its epoch, be ignored. */
        private void markPast(PendingWatermark one) {
            if (!isPast(one.member)) {
                past.put(one.member.epoch(), one.member.sequence());
            }
        }

        /** Returns whether a watermark is complete or was dropped. One far before those is a new one. */
        private boolean isPast(Change.Watermark one) {
            long newest = past.getOrDefault(one.epoch(), 0L);
            return one.sequence() == 0 || one.sequence() <= newest && newest - one.sequence() < MAX_PENDING_WATERMARKS;
        }

        /**
         * Leaves the pending watermarks unchecked that stand behind a dropped change and before that of the row: what the object
         * was at their positions is not known.
         */
        void skipChecksBetween(String dropped, String peak) {
            int behind = first(reach -> compare(reach, peak) > 0);
            if (behind > 0 && compare(dropped, pending.get(behind - 1).reach) <= 0) {
                skipped = Math.max(skipped, pending.get(behind - 1).number);
            }
        }

        /** Returns the first pending watermark whose reach has a property, which all after it have, too. */
        private int first(Predicate<String> holds) {
            int first = 0, end = pending.size();
            while (first < end) {
                int middle = (first + end) >>> 1;
                if (holds.test(pending.get(middle).reach)) {
                    end = middle;
                } else {
                    first = middle + 1;
                }
            }
            return first;
        }

        /** Leaves the pending watermarks unchecked. */
        void skipChecks() {
            skipped = started;
        }

        /** Replaces the row of a key; null is none. Unless the place of the record is certain, no check is made. */
        void update(Key key, Row old, Row now, boolean certain) {
            if (now != null) {
                highest = later(highest, now.peak);
            }
            behind += (now != null && now.behind ? 1 : 0) - (old != null && old.behind ? 1 : 0);
            boolean exists = now != null && !now.deleted, existed = old != null && !old.deleted;
            if (!exists && !existed || exists && existed && old.uid.equals(now.uid) && old.emitted.equals(now.emitted)) {
                return;
            }
            Sum changed = new Sum();
            changed.replace(key, old, now);
            sum.add(changed, 1);
            if (!certain || now.behind || !isOrdered(now.peak)) {
                skipChecks();
                return;
            }
            int first = first(reach -> isOrdered(reach) && compare(reach, now.peak) >= 0);
            if (first < pending.size()) {
                pending.get(first).late.add(changed, 1);
                late.add(changed, 1);
            }
        }
    }

    /** A version of an object in a snapshot. */
    private record Listed(String uid, String version, boolean deleted, String at) {
        static Listed of(Change change) {
            return new Listed(change.uid(), change.resourceVersion(), change.type().equals("deleted"), normalizeTime(change.observedAt()));
        }
    }

    /** One snapshot. It keeps the listed versions until count and digest are verified. */
    private static final class SnapshotState {
        final String id;
        String namespace = ""; // for all namespaces
        Change.Snapshot end;
        String position = ""; // of the end, unless a gap has lowered it (7)
        String endedAt = "";
        boolean verified;
        final Map<Key, Listed> listed = new HashMap<>(); // the newest of each object; empty once verified
        private long existing; // of listed: those that are not deleted
        private final long[] digest = new long[4];

        SnapshotState(String id) {
            this.id = id;
        }

        /** Reports whether the snapshot would contain the object, in this or a later version, if it still existed (8). */
        boolean supersedes(Key key, Row row) {
            return !row.deleted && !id.equals(row.snapshotID) && (namespace.isEmpty() || namespace.equals(key.namespace()))
                    && compare(row.resourceVersion, position) <= 0
                    && isReadBefore(row.readVersion, position, row.observedAt, endedAt);
        }

        /** Records the newest version of an object in the snapshot. */
        void recordListed(Key key, Listed now) {
            if (verified) {
                return;
            }
            Listed old = listed.put(key, now);
            if (old != null && !old.deleted) {
                add(key, old, -1);
            }
            if (!now.deleted) {
                add(key, now, 1);
            }
            verify();
        }

        /** Compares count and digest with the end. A mismatch may be temporary: other partitions can lag behind. */
        void verify() {
            if (end == null || existing != end.count()) {
                return;
            }
            String sum = String.format("%016x%016x%016x%016x", digest[0], digest[1], digest[2], digest[3]);
            if (sum.equals(end.digest())) {
                verified = true;
                listed.clear();
            }
        }

        private void add(Key key, Listed of, int sign) {
            existing += sign;
            byte[] sum = sha256(key.namespace() + "/" + key.name() + "/" + of.uid + "/" + of.version);
            for (int i = 0; i < digest.length; i++) {
                digest[i] += sign * new BigInteger(1, java.util.Arrays.copyOfRange(sum, 8 * i, 8 * i + 8)).longValue();
            }
        }
    }

    private static final class ResourceState {
        final Map<Key, Row> rows = new HashMap<>();
        final Map<String, SnapshotState> snapshots = new HashMap<>();
        final Map<String, WatermarkScope> scopes = new HashMap<>(); // by namespace; "" for all; only those with watermarks
        private final Map<String, SnapshotState> newest = new HashMap<>(); // that has ended, by namespace; "" for all

        SnapshotState snapshotFor(String id) {
            return snapshots.computeIfAbsent(id, SnapshotState::new);
        }

        void applyObject(Change change) {
            Row old = rows.get(change.key());
            if (old != null) {
                if (change.id().equals(old.id)) { // 4
                    return;
                }
                boolean late = old.wasReadAfter(change); // 10
                if (late) {
                    recordDropped(old, change);
                }
                if (late || old.shouldDrop(change)) {
                    skipChecksAt(old, change);
                    return;
                }
            }
            Row row = new Row(change, old); // 3
            if (change.snapshot() != null) {
                snapshotFor(row.snapshotID).recordListed(change.key(), Listed.of(change));
            }
            if (isSuperseded(change.key(), row)) {
                remove(change.key());
                return;
            }
            scopesOf(change.key()).forEach(scope -> scope.update(change.key(), old, row, !change.isListed()));
            rows.put(change.key(), row);
        }

        /** Records for its snapshot a change that is dropped because the row was read after it. */
        private void recordDropped(Row old, Change change) {
            if (change.snapshot() == null) {
                return;
            }
            SnapshotState one = snapshotFor(change.snapshot().id());
            if (old.snapshotID == null) {
                old.snapshotID = one.id;
            }
            Listed known = one.listed.get(change.key()), now = Listed.of(change);
            if (known == null || now.at.compareTo(known.at) >= 0) {
                one.recordListed(change.key(), now);
            }
        }

        private void skipChecksAt(Row old, Change dropped) {
            String at = later(dropped.readVersion(), dropped.resourceVersion());
            scopesOf(dropped.key()).forEach(scope -> scope.skipChecksBetween(at, old.peak));
        }

        void applyWatermark(Change change) {
            scopes.computeIfAbsent(change.key().namespace(), namespace -> {
                WatermarkScope scope = new WatermarkScope();
                recompute(namespace, scope);
                return scope;
            }).apply(change);
        }

        private void recompute(String namespace, WatermarkScope scope) {
            scope.sum = new Sum();
            scope.behind = 0;
            scope.highest = "";
            rows.forEach((key, row) -> {
                if (namespace.isEmpty() || namespace.equals(key.namespace())) {
                    scope.sum.replace(key, null, row);
                    scope.highest = later(scope.highest, row.peak);
                    scope.behind += row.behind ? 1 : 0;
                }
            });
        }

        private List<WatermarkScope> scopesOf(Key key) {
            return scopes.isEmpty() ? List.of()
                    : Stream.of("", key.namespace()).distinct().map(scopes::get).filter(scope -> scope != null).toList();
        }

        /** Removes the row of an object that the end of a snapshot lacks. */
        private void remove(Key key) {
            Row old = rows.remove(key);
            if (old != null) {
                scopesOf(key).forEach(scope -> scope.update(key, old, null, false));
            }
        }

        /** Leaves the pending watermarks unchecked, because objects may be gone without a record of their own. */
        private void skipChecks() {
            scopes.values().forEach(WatermarkScope::skipChecks);
        }

        /** Reports whether a row is of a partition that is read later, or repeated, and an end lacks it (8). */
        private boolean isSuperseded(Key key, Row row) {
            SnapshotState all = newest.get(""), own = newest.get(key.namespace());
            return all != null && all.supersedes(key, row) || own != null && own.supersedes(key, row);
        }

        /** Removes the objects that the snapshot lacks and that were read before it (8). */
        void applySnapshotEnd(Change change) {
            SnapshotState one = snapshotFor(change.snapshot().id());
            if (one.end != null) {
                return;
            }
            one.namespace = change.key().namespace();
            one.end = change.snapshot();
            one.position = one.end.position();
            one.endedAt = change.observedAt();
            SnapshotState last = newest.get(one.namespace);
            if (last == null || isReadBefore(last.position, one.position, last.endedAt, one.endedAt)) {
                newest.put(one.namespace, one);
            }
            rows.entrySet().stream().filter(entry -> one.supersedes(entry.getKey(), entry.getValue())).map(Map.Entry::getKey)
                    .toList().forEach(this::remove);
            skipChecks();
            one.verify();
        }

        /** Lowers versions to the end of a gap that ends before it starts: the cluster was restored from a backup (7). */
        void applyGap(Change.Gap gap) {
            if (compare(gap.to(), gap.from()) >= 0) {
                return;
            }
            rows.values().forEach(row -> {
                row.resourceVersion = lower(row.resourceVersion, gap.to());
                if (isLowered(row.readVersion, gap.to())) {
                    row.readVersion = gap.to();
                    row.observedAt = ""; // before whatever is read at that version, by any clock
                }
                row.peak = lower(row.peak, gap.to());
                row.behind = false;
            });
            snapshots.values().stream().filter(one -> isLowered(one.position, gap.to())).forEach(one -> {
                one.position = gap.to();
                one.endedAt = "";
            });
            scopes.forEach(this::recompute);
            skipChecks();
        }
    }

    /** Orders by the versions of the cluster; by clocks only if these are equal, unknown or without an order (8). */
    private static boolean isReadBefore(String a, String b, String observedA, String observedB) {
        int order = compare(a, b);
        return order < 0 || order == 0 && normalizeTime(observedA).compareTo(normalizeTime(observedB)) < 0;
    }

    /** Returns a time in UTC of RFC 3339 in a form that sorts as text. */
    private static String normalizeTime(String observedAt) {
        String time = observedAt.endsWith("Z") ? observedAt.substring(0, observedAt.length() - 1) : observedAt;
        return time.contains(".") ? time : time + ".";
    }

    /** Orders two resourceVersions: by length, then as text (4). 0 if they are equal or one is no growing integer. */
    private static int compare(String a, String b) {
        if (!isOrdered(a) || !isOrdered(b)) {
            return 0;
        }
        return a.length() != b.length() ? Integer.compare(a.length(), b.length()) : a.compareTo(b);
    }

    private static boolean isOrdered(String version) {
        return !version.isEmpty() && version.charAt(0) != '0' && version.chars().allMatch(c -> '0' <= c && c <= '9');
    }

    /** Returns the later of two versions; the second if they have no order. */
    private static String later(String a, String b) {
        return b.isEmpty() || compare(a, b) > 0 ? a : b;
    }

    private static boolean isLowered(String version, String to) {
        return version.equals(to) || compare(version, to) > 0;
    }

    private static String lower(String version, String to) {
        return compare(version, to) > 0 ? to : version;
    }

    private static byte[] sha256(String text) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        } catch (NoSuchAlgorithmException everyJavaHasIt) {
            throw new IllegalStateException(everyJavaHasIt);
        }
    }
}
