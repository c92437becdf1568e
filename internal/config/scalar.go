package config

import (
	"encoding"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes. In a file it is a plain number or a number with a unit: "10Gi", "64Mi", "500k".
type Bytes int64

// units of sizes. The four binary units come first, because Bytes.String uses only those.
var units = []struct {
	suffix string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// String formats the size with the largest binary unit that keeps it exact: "10Gi", "1536Mi", "1000".
func (b Bytes) String() string {
	for i := 3; i >= 0; i-- {
		if f := units[i].factor; b != 0 && int64(b)%f == 0 {
			return strconv.FormatInt(int64(b)/f, 10) + units[i].suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

const (
	expectBytes    = `a number of bytes, such as 1048576, "64Mi" or "10Gi"`
	expectDuration = `a number with a unit, such as "100ms", "30s" or "5m"`
)

// mismatch is the reason why a value does not fit its key, and the expected form.
type mismatch struct{ message, expected string }

func parseBytes(s string) (int64, *mismatch) {
	digits, factor := s, int64(1)
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, factor = d, u.factor
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil:
		return 0, &mismatch{"not a size", expectBytes}
	case n < 0:
		return 0, &mismatch{"must not be negative", expectBytes}
	case n > math.MaxInt64/factor:
		return 0, &mismatch{"too large", expectBytes}
	}
	return n * factor, nil
}

func parseDuration(s string) (time.Duration, *mismatch) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, &mismatch{"not a duration", expectDuration}
	case d < 0:
		return 0, &mismatch{"must not be negative", expectDuration}
	case d > maxDuration:
		return 0, &mismatch{"too long", "at most " + maxDuration.String()}
	}
	return d, nil
}

// maxDuration is a hundred years: sums of a few durations do not overflow.
const maxDuration = 100 * 365 * 24 * time.Hour

var (
	durationType        = reflect.TypeFor[time.Duration]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// setScalar parses text into v. isSize means that an integer is a number of bytes and may have a unit.
func setScalar(v reflect.Value, text string, isSize bool) *mismatch {
	switch t := v.Type(); {
	case reflect.PointerTo(t).Implements(textUnmarshalerType):
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			return &mismatch{message: err.Error()}
		}
		return nil
	case t == durationType:
		d, bad := parseDuration(text)
		v.SetInt(int64(d))
		return bad
	case isSize:
		n, bad := parseBytes(text)
		if bad == nil && v.OverflowInt(n) {
			bad = &mismatch{"too large", expectBytes}
		}
		v.SetInt(n)
		return bad
	}
	return setBuiltin(v, text)
}

func setBuiltin(v reflect.Value, text string) *mismatch {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return &mismatch{"not a boolean", "true or false"}
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return &mismatch{"not a whole number", "a whole number"}
		}
		v.SetInt(n)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return &mismatch{"not a number", "a number"}
		}
		v.SetFloat(f)
	default:
		return &mismatch{message: "cannot be set from a file: no YAML value makes a " + v.Type().String()}
	}
	return nil
}

// isSize reports whether an integer is a size: its type is [Bytes] or its key ends in "bytes".
func isSize(t reflect.Type, key string) bool {
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return t == reflect.TypeFor[Bytes]() || t != durationType && (key == "bytes" || strings.HasSuffix(key, "Bytes"))
	}
	return false
}
