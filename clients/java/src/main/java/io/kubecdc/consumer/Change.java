package io.kubecdc.consumer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A native object, with each member that docs/events-reference.md lists. Strings are empty if the member is absent, objects
 * null; before and body are the JSON text of the members before and after, unchanged, and null if absent.
 * The member class is changeClass.
 */
public record Change(String id, String type, Table.Resource resource, String version, String kind, Table.Key key, String uid,
        String resourceVersion, String listVersion, long generation, String observedAt, ChangedAt changedAt, String delta,
        boolean coalesced, boolean finalStateUnknown, boolean left, boolean redactionChanged, Actor actor, String changeClass,
        Snapshot snapshot, Gap gap, Watermark watermark, Replay replay, String of, Author by, Author requestedBy,
        String certainty, DeadLetter deadLetter, List<String> omitted, List<Difference> changed, String before, String body) {

    /**
     * An item of the member changed. Values are JSON, and null if they were added or removed, or are in omitted; the index is
     * that of an item with keys that was added or removed, and else -1. An item of a list of paths has the path only.
     */
    public record Difference(String path, String from, String to, long index, List<String> omitted) {}

    /** The member changedAt: the change was made between notBefore, which is empty if unknown, and at. */
    public record ChangedAt(String at, String notBefore, String source) {}

    /** The member actor: the field manager of a write, by the name that it gave itself. */
    public record Actor(String manager, String operation, String subresource, String time) {}

    /** The authenticated user of a request, or in unknown the reason why none is named. */
    public record Author(String user, String uid, List<String> groups, String impersonator, String impersonationConstraint,
            String verb, String subresource, String received, Claimed claimed, String unknown) {}

    /** What the client of a request chose. */
    public record Claimed(String userAgent, List<String> sourceIPs, String auditID) {}

    /** The member replay: of a record that is emitted again of and type, of the end of a replay the rest. */
    public record Replay(String id, String of, String type, String state, long count, String reason) {}

    /** The member deadLetter: the sink that could not deliver the record, and why. */
    public record DeadLetter(String sink, String reason) {}

    /** The member snapshot. All components except id are set only on snapshot.end. */
    public record Snapshot(String id, String position, long count, String digest) {}

    /** The member gap: history between two positions was lost. */
    public record Gap(String from, String to, String reason) {}

    /** The member watermark. The algorithm is empty if the stream does not have everything that the exporter knows. */
    public record Watermark(String epoch, long sequence, long lane, long lanes, String algorithm, long count, String digest) {}

    static final Set<String> OBJECT_TYPES = Set.of("added", "updated", "deleted", "snapshot", "sync");

    /**
     * Decodes one native object. It ignores unknown members and accepts unknown types, which {@link Table#apply} ignores.
     *
     * @throws InvalidRecordException if the value is no native object; the text does not quote it
     */
    public static Change parse(String value) {
        Map<String, String> members = Json.readObject(value);
        String id = members == null ? null : Json.readText(members.get("id"));
        String type = members == null ? null : Json.readText(members.get("type"));
        if (id == null || type == null || id.isEmpty() || type.isEmpty()) {
            throw new InvalidRecordException("not a native object: no id or no type");
        }
        Map<String, String> snapshot = readMember(members, "snapshot"), gap = readMember(members, "gap");
        Map<String, String> watermark = readMember(members, "watermark"), changed = readMember(members, "changedAt");
        Map<String, String> actor = readMember(members, "actor"), replay = readMember(members, "replay");
        Map<String, String> deadLetter = readMember(members, "deadLetter");
        if (type.equals("gap") && gap == null || type.equals("watermark") && watermark == null || type.startsWith("snapshot.") && snapshot == null) {
            throw new InvalidRecordException("record " + id + " lacks the member that its type " + type + " requires");
        }
        String body = members.get("after");
        boolean sets = OBJECT_TYPES.contains(type) && !type.equals("deleted") && deadLetter == null;
        if (sets && (body == null || !body.startsWith("{"))) {
            throw new InvalidRecordException("record " + id + " of type " + type + " has no object");
        }
        return new Change(id, type, new Table.Resource(text(members, "cluster"), text(members, "group"), text(members, "resource")),
                text(members, "version"), text(members, "kind"), new Table.Key(text(members, "namespace"), text(members, "name")),
                text(members, "uid"), text(members, "resourceVersion"), text(members, "listVersion"), number(members, "generation"),
                text(members, "observedAt"),
                changed == null ? null : new ChangedAt(text(changed, "at"), text(changed, "notBefore"), text(changed, "source")),
                text(members, "delta"), isTrue(members, "coalesced"), isTrue(members, "finalStateUnknown"), isTrue(members, "left"),
                isTrue(members, "redactionChanged"),
                actor == null ? null : new Actor(text(actor, "manager"), text(actor, "operation"), text(actor, "subresource"),
                        text(actor, "time")),
                text(members, "class"),
                snapshot == null ? null : new Snapshot(text(snapshot, "id"), text(snapshot, "position"), number(snapshot, "count"),
                        text(snapshot, "digest")),
                gap == null ? null : new Gap(text(gap, "from"), text(gap, "to"), text(gap, "reason")),
                watermark == null ? null : new Watermark(text(watermark, "epoch"), number(watermark, "sequence"), number(watermark, "lane"),
                        number(watermark, "lanes"), text(watermark, "algorithm"), number(watermark, "count"), text(watermark, "digest")),
                replay == null ? null : new Replay(text(replay, "id"), text(replay, "of"), text(replay, "type"), text(replay, "state"),
                        number(replay, "count"), text(replay, "reason")),
                text(members, "of"), readAuthor(readMember(members, "by")), readAuthor(readMember(members, "requestedBy")),
                text(members, "certainty"),
                deadLetter == null ? null : new DeadLetter(text(deadLetter, "sink"), text(deadLetter, "reason")),
                texts(members, "omitted"), readChanged(members.get("changed")), members.get("before"), body);
    }

    private static Author readAuthor(Map<String, String> author) {
        if (author == null) {
            return null;
        }
        Map<String, String> claimed = readMember(author, "claimed");
        return new Author(text(author, "user"), text(author, "uid"), texts(author, "groups"), text(author, "impersonator"),
                text(author, "impersonationConstraint"), text(author, "verb"), text(author, "subresource"), text(author, "received"),
                claimed == null ? null : new Claimed(text(claimed, "userAgent"), texts(claimed, "sourceIPs"), text(claimed, "auditID")),
                text(author, "unknown"));
    }

    private static List<Difference> readChanged(String list) {
        List<Difference> changed = new ArrayList<>();
        for (String item : Json.readArray(list)) {
            String path = Json.readText(item);
            if (path != null) {
                changed.add(new Difference(path, null, null, -1, List.of()));
                continue;
            }
            Map<String, String> one = Json.readObject(item);
            if (one == null) {
                throw new InvalidRecordException("changed has an item that is neither a path nor an object");
            }
            changed.add(new Difference(text(one, "path"), one.get("from"), one.get("to"),
                    one.containsKey("index") ? number(one, "index") : -1, texts(one, "omitted")));
        }
        return List.copyOf(changed);
    }

    /** Returns the version of the cluster at which the record was read (rule 8); "" for a list that 0.9.0 has read. */
    String readVersion() {
        return isListed() ? listVersion : resourceVersion;
    }

    /** Reports whether a list showed the record, not a watch. */
    boolean isListed() {
        return !listVersion.isEmpty() || coalesced || snapshot != null || type.equals("sync");
    }

    private static Map<String, String> readMember(Map<String, String> members, String name) {
        String value = members.get(name);
        return value == null ? null : Json.readObject(value);
    }

    private static String text(Map<String, String> members, String name) {
        String value = Json.readText(members.get(name));
        return value == null ? "" : value;
    }

    private static List<String> texts(Map<String, String> members, String name) {
        String list = members.get(name);
        return list == null ? List.of() : Json.readArray(list).stream().map(Json::readText).toList();
    }

    private static boolean isTrue(Map<String, String> members, String name) {
        return "true".equals(members.get(name));
    }

    private static long number(Map<String, String> members, String name) {
        try {
            return Long.parseLong(members.getOrDefault(name, "0"));
        } catch (NumberFormatException notANumber) {
            return -1;
        }
    }
}
