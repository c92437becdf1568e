package attribution

// maxMarks is how many objects are remembered that wait for their finalizers, or for their time to end.
const maxMarks = 4096

// marks remembers who asked for the deletion of objects that still exist: the newest ones.
type marks struct {
	by    map[string]*Request // by UID
	order []string            // oldest first; may name what is gone
}

func newMarks() marks { return marks{by: map[string]*Request{}} }

func (m *marks) put(uid string, by *Request) {
	if _, there := m.by[uid]; !there {
		m.order = append(m.order, uid)
	}
	m.by[uid] = by
	for len(m.order) > maxMarks {
		delete(m.by, m.order[0])
		m.order = m.order[1:]
	}
}

// take returns who asked for the deletion of an object, and forgets it.
func (m *marks) take(uid string) *Request {
	by := m.by[uid]
	delete(m.by, uid)
	return by
}
