package io.kubecdc.consumer;

import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

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

    private final Map<Resource, ResourceState> resources = new HashMap<>();
    private final List<ResourceGap> gaps = new ArrayList<>();

    /** Applies the next record. Unknown types are ignored, because new types may be added (9). */
    public void apply(Change change) {
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
        final String observedAt;
        final boolean deleted;
        final boolean uncertain; // deleted, but the version may be of another state: history was lost (5)
        String resourceVersion;
        String readVersion; // of the cluster, when the record was read (8)
        String snapshotID; // the last snapshot that contained this key (6); null if there is none

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
        }

        ExistingObject toObject(Key key) {
            return new ExistingObject(key, uid, resourceVersion, body);
        }

        /** Reports whether the row has the same record or a newer one. */
        boolean shouldDrop(Change change) {
            if (change.id().equals(id)) { // 4
                return true;
            }
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

    /** One snapshot. It keeps the listed versions until count and digest are verified. */
    private static final class SnapshotState {
        final String id;
        String namespace = ""; // for all namespaces
        Change.Snapshot end;
        String position = ""; // of the end, unless a gap has lowered it (7)
        String endedAt = "";
        boolean verified;
        private final Map<Key, String[]> versions = new HashMap<>(); // uid and version of each listed object
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

        /** Records a version that the list of the snapshot contains. */
        void recordVersion(Key key, Row row) {
            if (verified) {
                return;
            }
            String[] old = versions.remove(key);
            if (old != null) {
                add(key, old[0], old[1], -1);
            }
            if (!row.deleted) {
                versions.put(key, new String[] {row.uid, row.resourceVersion});
                add(key, row.uid, row.resourceVersion, 1);
            }
            verify();
        }

        /** Compares count and digest with the end. A mismatch may be temporary: other partitions can lag behind. */
        void verify() {
            if (end == null || versions.size() != end.count()) {
                return;
            }
            String sum = String.format("%016x%016x%016x%016x", digest[0], digest[1], digest[2], digest[3]);
            if (sum.equals(end.digest())) {
                verified = true;
                versions.clear();
            }
        }

        private void add(Key key, String uid, String version, int sign) {
            byte[] sum = sha256(key.namespace() + "/" + key.name() + "/" + uid + "/" + version);
            for (int i = 0; i < digest.length; i++) {
                digest[i] += sign * new BigInteger(1, java.util.Arrays.copyOfRange(sum, 8 * i, 8 * i + 8)).longValue();
            }
        }
    }

    private static final class ResourceState {
        final Map<Key, Row> rows = new HashMap<>();
        final Map<String, SnapshotState> snapshots = new HashMap<>();
        private final Map<String, SnapshotState> newest = new HashMap<>(); // that has ended, by namespace; "" for all

        SnapshotState snapshotFor(String id) {
            return snapshots.computeIfAbsent(id, SnapshotState::new);
        }

        void applyObject(Change change) {
            Row old = rows.get(change.key());
            if (old != null && old.shouldDrop(change)) {
                return;
            }
            Row row = new Row(change, old); // 3
            if (change.snapshot() != null) {
                snapshotFor(row.snapshotID).recordVersion(change.key(), row);
            }
            if (isSuperseded(change.key(), row)) {
                rows.remove(change.key());
            } else {
                rows.put(change.key(), row);
            }
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
            rows.entrySet().removeIf(entry -> one.supersedes(entry.getKey(), entry.getValue()));
            one.verify();
        }

        /** Lowers versions to the end of a gap that ends before it starts: the cluster was restored from a backup (7). */
        void applyGap(Change.Gap gap) {
            if (compare(gap.to(), gap.from()) >= 0) {
                return;
            }
            rows.values().forEach(row -> {
                row.resourceVersion = lower(row.resourceVersion, gap.to());
                row.readVersion = lower(row.readVersion, gap.to());
            });
            snapshots.values().forEach(one -> one.position = lower(one.position, gap.to()));
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
