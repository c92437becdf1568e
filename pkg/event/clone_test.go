package event

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestCloneSharesNoMemory fills every field of a change by reflection, so that it also covers fields that are added later.
func TestCloneSharesNoMemory(t *testing.T) {
	var c Change
	fillEveryField(reflect.ValueOf(&c).Elem())
	d := c.Clone()
	if !reflect.DeepEqual(&c, d) {
		t.Fatalf("the clone differs:\n%+v\n%+v", c, *d)
	}
	of := map[unsafe.Pointer]string{}
	visitMemory(reflect.ValueOf(&c).Elem(), "Change", func(at unsafe.Pointer, path string) { of[at] = path })
	visitMemory(reflect.ValueOf(d).Elem(), "Change", func(at unsafe.Pointer, path string) {
		if original, shared := of[at]; shared {
			t.Errorf("%s is that of the original's %s", path, original)
		}
	})
}

func TestCloneKeepsNilAndEmptyApart(t *testing.T) {
	c := Change{After: []byte{}, Omitted: []string{strings.Repeat("a", 1000), "b"}}
	if d := c.Clone(); !reflect.DeepEqual(&c, d) {
		t.Errorf("the clone differs:\n%+v\n%+v", c, *d)
	}
}

// fillEveryField sets everything in v to a non-zero value.
func fillEveryField(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Clone(fmt.Sprint("text ", v.Type(), v.CanAddr())))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillEveryField(v.Index(0))
		fillEveryField(v.Index(1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillEveryField(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(7, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fillEveryField(v.Field(i))
		}
	default:
		panic(fmt.Sprintf("a field of kind %v", v.Kind()))
	}
}

// visitMemory reports all memory outside v that v refers to.
func visitMemory(v reflect.Value, path string, visit func(at unsafe.Pointer, path string)) {
	switch v.Kind() {
	case reflect.String:
		visit(unsafe.Pointer(unsafe.StringData(v.String())), path)
	case reflect.Slice:
		visit(v.UnsafePointer(), path)
		for i := range v.Len() {
			visitMemory(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	case reflect.Pointer:
		visit(v.UnsafePointer(), path)
		visitMemory(v.Elem(), path, visit)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			visitMemory(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
		}
	}
}
