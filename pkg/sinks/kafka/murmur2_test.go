package kafka

import "testing"

// The vectors are those of org.apache.kafka.common.utils.UtilsTest.testMurmur2.
func TestKeysAreHashedAsJavaDoes(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestPartitionsOfNegativeHashesAreJavas(t *testing.T) {
	t.Parallel()
	// toPositive clears the sign bit; it does not negate.
	if got, want := partitionForKey([]byte("21"), 6), int32((-973932308&0x7fffffff)%6); got != want {
		t.Errorf("partition %d, want %d", got, want)
	}
}
