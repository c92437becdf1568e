package io.kubecdc.consumer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Reads native objects, one JSON object a line, and prints the objects that exist after them, and the newest watermarks. */
final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException {
        Table table = new Table();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (!line.isBlank()) {
                table.apply(Change.parse(line));
            }
        }
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (Table.Resource resource : table.resources()) {
            for (Table.ExistingObject one : table.objects(resource)) {
                output.println("{\"cluster\":" + quote(resource.cluster()) + ",\"group\":" + quote(resource.group())
                        + ",\"resource\":" + quote(resource.resource()) + ",\"namespace\":" + quote(one.key().namespace())
                        + ",\"name\":" + quote(one.key().name()) + ",\"object\":" + one.body() + "}");
            }
        }
        for (Table.WatermarkStatus one : table.watermarks()) {
            output.println("{\"cluster\":" + quote(one.resource().cluster()) + ",\"group\":" + quote(one.resource().group())
                    + ",\"resource\":" + quote(one.resource().resource()) + ",\"namespace\":" + quote(one.namespace())
                    + ",\"watermark\":{\"position\":" + quote(one.position()) + ",\"check\":" + quote(one.check()) + "}}");
            if (one.different() > 0) {
                System.err.println(one.different() + " watermarks of " + one.resource().resource() + " differ from the table");
            }
        }
        output.flush();
        for (Table.SnapshotStatus one : table.snapshots()) {
            if (one.ended() && !one.verified()) {
                System.err.println("snapshot " + one.id() + " of " + one.resource().resource() + " is not verified");
            }
        }
    }

    /** Writes a text as a JSON string. */
    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
