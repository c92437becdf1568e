package replay

import (
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// query is what a list or watch request asks for.
type query struct {
	watch             bool
	rv                uint64 // 0: unset, or "0"
	limit             int    // 0: no limit
	continued         string
	sendInitialEvents bool
	bookmarks         bool
	timeout           time.Duration // 0: none
	noObject          bool          // a field selector that no object of a corpus meets
}

// noObject begins the one selector that a replay server knows: a name that no object has. A client that only wants to know
// how far the history has come asks so.
const noObject = "metadata.name=kubecdc-no-such-object"

// parseQuery reads the parameters. One that would change the answer and is not known here is an error.
func parseQuery(values url.Values) (query, error) {
	var q query
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		v := values.Get(name)
		if v == noObject {
			q.noObject = true
		} else if v != "" {
			return q, fmt.Errorf("%s=%s: the replay server has no selectors", name, v)
		}
	}
	var err error
	if q.watch, err = boolean(values, "watch"); err != nil {
		return q, err
	}
	if q.sendInitialEvents, err = boolean(values, "sendInitialEvents"); err != nil {
		return q, err
	}
	if q.bookmarks, err = boolean(values, "allowWatchBookmarks"); err != nil {
		return q, err
	}
	if q.rv, err = number(values, "resourceVersion"); err != nil {
		return q, err
	}
	limit, err := number(values, "limit")
	if err != nil {
		return q, err
	}
	seconds, err := number(values, "timeoutSeconds")
	if err != nil {
		return q, err
	}
	q.limit, q.timeout = int(limit), time.Duration(seconds)*time.Second
	q.continued = values.Get("continue")
	if m := values.Get("resourceVersionMatch"); m != "" && m != "NotOlderThan" {
		return q, fmt.Errorf("resourceVersionMatch=%s: expected NotOlderThan", m)
	}
	return q, nil
}

func boolean(values url.Values, name string) (bool, error) {
	v := values.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("%s=%s: expected true or false", name, v)
	}
	return b, nil
}

func number(values url.Values, name string) (uint64, error) {
	v := values.Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s=%s: expected a number", name, v)
	}
	return n, nil
}
