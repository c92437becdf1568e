package corpus

import "math/rand/v2"

// family is a resource and a size.
type family uint8

const (
	smallPod family = iota // 4.8 KB
	largePod               // 14.4 KB
	eventObject
	families
)

func (f family) resource() Resource {
	if f == eventObject {
		return Events
	}
	return Pods
}

// familyOf mixes the families: of ten objects four are small Pods, two are large Pods, four are Events.
func (p *planner) familyOf(i int) family {
	if p.events {
		return eventObject
	}
	return [...]family{smallPod, eventObject, smallPod, largePod, eventObject, smallPod, eventObject, largePod, smallPod, eventObject}[i%10]
}

const (
	percentCreated  = 5
	percentDeleted  = 5 // the rest are updates
	percentReturned = 20
)

// planner decides the order of things.
type planner struct {
	random  *rand.Rand
	events  bool // Events only
	entries []Entry
	objects []object
	living  []int32 // objects
	free    [families][]int32
	slots   int32
}

// create adds an object, a part of them under the name of one that is gone.
func (p *planner) create(f family) {
	o := object{family: f, variant: p.random.Int32N(variants), slot: p.slots}
	if free := p.free[f]; len(free) > 0 && p.random.IntN(100) < percentReturned {
		i := p.random.IntN(len(free))
		o.slot = free[i]
		free[i] = free[len(free)-1]
		p.free[f] = free[:len(free)-1]
	} else {
		p.slots++
	}
	p.objects = append(p.objects, o)
	p.living = append(p.living, int32(len(p.objects)-1))
	p.note(len(p.objects)-1, Added)
}

// change does one thing to the cluster.
func (p *planner) change() {
	dice := p.random.IntN(100)
	switch {
	case dice < percentCreated || len(p.living) == 0:
		p.create(p.familyOf(p.random.IntN(10)))
	case dice < percentCreated+percentDeleted:
		i := p.random.IntN(len(p.living))
		gone := int(p.living[i])
		p.living[i] = p.living[len(p.living)-1]
		p.living = p.living[:len(p.living)-1]
		o := p.objects[gone]
		p.free[o.family] = append(p.free[o.family], o.slot)
		p.note(gone, Deleted)
	default:
		p.note(int(p.living[p.random.IntN(len(p.living))]), Modified)
	}
}

func (p *planner) note(object int, t Type) {
	p.entries = append(p.entries, Entry{
		Resource: p.objects[object].family.resource(),
		Type:     t,
		Object:   object,
		RV:       firstRV + uint64(len(p.entries)),
	})
}
