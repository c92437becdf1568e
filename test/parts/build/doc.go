// Package build provides the programs of the test parts: it builds or fetches each once and keeps it in a cache.
//
// The cache is the directory .cache at the root of the repository, or the one that KUBECDC_CACHE names. A program's
// file name holds a hash of everything it is made from, so a changed go.mod or pom.xml yields a new program and an old
// one is never taken for it; deleting the directory is always safe. Processes that need the same program at the same
// time build it once: the others wait for a file lock. A program appears in the cache by a rename, whole or not at
// all.
//
// The first build of the Kubernetes API server takes minutes, which is more than a test should wait; run the command
// "parts build all" before the tests. A running build is reported on standard error.
package build
