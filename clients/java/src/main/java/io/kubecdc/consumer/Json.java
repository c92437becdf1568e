package io.kubecdc.consumer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads the members of a JSON object (RFC 8259). Values stay text until they are asked for, so that bodies are unchanged. */
final class Json {
    /** How deep values may be nested. API servers accept some 9,990 levels. */
    private static final int MAX_DEPTH = 10_000;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Returns the members of an object as they are written; null if the text is no object. */
    static Map<String, String> readObject(String text) {
        try {
            Json json = new Json(text);
            json.skipSpace();
            Map<String, String> members = json.readMembers();
            json.skipSpace();
            return json.at == text.length() ? members : null;
        } catch (IndexOutOfBoundsException | IllegalArgumentException malformed) {
            return null;
        }
    }

    /** Returns the text of a JSON string; null if the value is something else, or absent. */
    static String readText(String value) {
        return value == null || !value.startsWith("\"") ? null : new Json(value).readString();
    }

    /** Returns the items of an array that was read before, as they are written; none if the value is something else, or absent. */
    static List<String> readArray(String value) {
        List<String> items = new ArrayList<>();
        if (value == null || !value.startsWith("[")) {
            return items;
        }
        Json json = new Json(value);
        json.at++;
        json.skipSpace();
        while (json.text.charAt(json.at) != ']') {
            int start = json.at;
            json.skipValue();
            items.add(value.substring(start, json.at));
            json.skipSpace();
            if (json.text.charAt(json.at) == ',') {
                json.at++;
                json.skipSpace();
            }
        }
        return items;
    }

    private Map<String, String> readMembers() {
        Map<String, String> members = new LinkedHashMap<>();
        expect('{');
        skipSpace();
        if (text.charAt(at) == '}') {
            at++;
            return members;
        }
        while (true) {
            skipSpace();
            String name = readString();
            skipSpace();
            expect(':');
            skipSpace();
            int start = at;
            skipValue();
            members.put(name, text.substring(start, at));
            skipSpace();
            if (text.charAt(at++) == '}') {
                return members;
            }
            if (text.charAt(at - 1) != ',') {
                throw new IllegalArgumentException();
            }
        }
    }

    private String readString() {
        expect('"');
        StringBuilder read = new StringBuilder();
        for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
            if (c < ' ') {
                throw new IllegalArgumentException();
            }
            read.append(c == '\\' ? readEscape() : c);
        }
        return read.toString();
    }

    private char readEscape() {
        char c = text.charAt(at++);
        switch (c) {
            case '"', '\\', '/':
                return c;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                at += 4;
                return (char) Integer.parseInt(text.substring(at - 4, at), 16);
            default:
                throw new IllegalArgumentException();
        }
    }

    /** Skips a value without recursion: brackets have to match, and what is between them to be strings and scalars. */
    private void skipValue() {
        StringBuilder open = new StringBuilder();
        do {
            char c = text.charAt(at);
            if (c == '"') {
                readString();
            } else if (c == '{' || c == '[') {
                open.append(c == '{' ? '}' : ']');
                at++;
            } else if (c == '}' || c == ']') {
                if (open.length() == 0 || open.charAt(open.length() - 1) != c) {
                    throw new IllegalArgumentException();
                }
                open.setLength(open.length() - 1);
                at++;
            } else {
                skipScalar(open.length() > 0);
            }
            if (open.length() > MAX_DEPTH) {
                throw new IllegalArgumentException();
            }
        } while (open.length() > 0);
    }

    private void skipScalar(boolean inside) {
        int start = at;
        while (at < text.length() && " \t\r\n,:{}[]\"".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        if (at > start) {
            return;
        }
        if (!inside || text.charAt(at) != ',' && text.charAt(at) != ':' && !isSpace(text.charAt(at))) {
            throw new IllegalArgumentException();
        }
        at++;
    }

    private void expect(char c) {
        if (text.charAt(at++) != c) {
            throw new IllegalArgumentException();
        }
    }

    private void skipSpace() {
        while (at < text.length() && isSpace(text.charAt(at))) {
            at++;
        }
    }

    private static boolean isSpace(char c) {
        return c == ' ' || c == '\t' || c == '\r' || c == '\n';
    }
}
