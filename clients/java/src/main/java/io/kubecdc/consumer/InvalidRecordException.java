package io.kubecdc.consumer;

/** A value is no native object, or lacks a member that its type requires. The text does not quote it. */
public class InvalidRecordException extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    /** Makes an exception with a text. */
    public InvalidRecordException(String text) {
        super(text);
    }
}
