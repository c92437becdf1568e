// Package rawjson walks JSON text without decoding it, for those who need a few members of an object, or want to take some
// out, and leave the rest as it stands. It allocates nothing, but for names with escapes.
//
// Functions take the text and the index where something begins, and return the index behind it. A negative index says
// that the text is malformed, and where: see [FailAt]. It never quotes the text, which may be secret.
package rawjson
