package config

import (
	"os"
	"reflect"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// overlayEnvironment overrides the single values of cfg by KUBECDC_… variables. An empty variable counts as not set.
func overlayEnvironment(cfg *Config) []Problem {
	v := viper.New()
	v.SetEnvPrefix(environmentPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AutomaticEnv()
	var problems []Problem
	forEachScalar(reflect.ValueOf(cfg).Elem(), "", func(path string, value reflect.Value) {
		v.SetDefault(path, value.Interface())
		if text := os.Getenv(EnvironmentName(path)); text != "" {
			if bad := setScalar(reflect.New(value.Type()).Elem(), text, isSize(value.Type(), lastKey(path))); bad != nil {
				problems = append(problems, Problem{File: "environment", Path: path, Found: EnvironmentName(path) + "=" + text,
					Expected: bad.expected, Message: bad.message})
			}
		}
	})
	if len(problems) > 0 {
		return problems
	}
	if err := v.Unmarshal(cfg, viper.DecodeHook(mapstructure.DecodeHookFuncValue(decodeTextHook))); err != nil {
		return []Problem{{File: "environment", Message: err.Error()}}
	}
	return nil
}

// decodeTextHook is the decode hook that parses variables like values of the file.
func decodeTextHook(from, to reflect.Value) (any, error) {
	text, ok := from.Interface().(string)
	if !ok || to.Kind() == reflect.String {
		return from.Interface(), nil
	}
	value := reflect.New(to.Type()).Elem()
	setScalar(value, text, isSize(to.Type(), "")) // overlayEnvironment has checked that it parses
	return value.Interface(), nil
}

// forEachScalar calls f for every key of v that holds one value. Lists and their contents are skipped.
func forEachScalar(v reflect.Value, path string, f func(path string, value reflect.Value)) {
	fields := fieldsOf(v.Type())
	for _, key := range keysInStructOrder(fields) {
		value := v.FieldByIndex(fields[key].index)
		switch value.Kind() {
		case reflect.Struct:
			forEachScalar(value, joinPath(path, key), f)
		case reflect.Slice, reflect.Pointer, reflect.Map:
		default:
			f(joinPath(path, key), value)
		}
	}
}

// environmentPrefix begins the name of every variable that overrides a key.
const environmentPrefix = "KUBECDC"

// EnvironmentName returns the variable that overrides the key at path, "journal.maxBytes" → "KUBECDC_JOURNAL_MAXBYTES".
// Only single values outside lists have one.
func EnvironmentName(path string) string {
	return environmentPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}
