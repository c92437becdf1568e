// Package rawjson walks JSON text without decoding it, to read or remove a few members of an object and leave the rest
// unchanged. It allocates only for names with escapes.
//
// Functions take the text and the index where an item starts, and return the index after its end. A negative index means
// that the text is malformed, and encodes where: see [FailAt]. Errors never quote the text, which may be secret. A [Value]
// finds parts of a text that is known to be well-formed, without indexes.
package rawjson
