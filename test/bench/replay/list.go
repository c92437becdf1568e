package replay

import (
	"fmt"
	"net/http"
	"strconv"
)

// list answers a list request, whole or one page of it.
func (s *Server) list(w http.ResponseWriter, h *history, q query) {
	at, from := s.current(h), 0
	if q.continued != "" {
		var err error
		if at, from, err = h.resume(q.continued); err != nil {
			writeStatus(w, badRequest(err))
			return
		}
	}
	if q.rv > at.rv {
		writeStatus(w, tooLarge(q.rv, at.rv))
		return
	}
	to := len(at.objects)
	if q.limit > 0 {
		to = min(to, from+q.limit)
	}
	w.Header().Set("Content-Type", "application/json")
	writeList(w, h, at, from, to)
}

// writeList writes the objects from index from up to to. An error of the connection ends it; the client knows best.
func writeList(w http.ResponseWriter, h *history, at *state, from, to int) {
	head := fmt.Sprintf(`{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":"%d"`, h.resource.Kind(), at.rv)
	if left := len(at.objects) - to; left > 0 {
		head += fmt.Sprintf(`,"continue":"%d:%d","remainingItemCount":%d`, at.rv, to, left)
	}
	if _, err := w.Write([]byte(head + `},"items":[`)); err != nil {
		return
	}
	item := []byte{}
	for i := from; i < to; i++ {
		item = append(item[:0], ",{"...)
		item = append(item, h.listItem(at.objects[i])...)
		if i == from {
			item = item[1:]
		}
		if _, err := w.Write(item); err != nil {
			return
		}
	}
	_, _ = w.Write([]byte("]}\n"))
}

// resume reads a continue token, which names the state and the next object. Both states stay for ever.
func (h *history) resume(token string) (*state, int, error) {
	var rv uint64
	var from int
	if n, err := fmt.Sscanf(token, "%d:%d", &rv, &from); n != 2 || err != nil {
		return nil, 0, fmt.Errorf("continue=%s: not a token of this server", strconv.Quote(token))
	}
	for _, at := range []*state{&h.before, &h.after} {
		if at.rv == rv && from >= 0 && from <= len(at.objects) {
			return at, from, nil
		}
	}
	return nil, 0, fmt.Errorf("continue=%s: no such state", strconv.Quote(token))
}
