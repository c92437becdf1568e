package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// minWatermarks bounds how often watermarks are written.
const minWatermarks = time.Second

// validateWatermarks checks how often a sink gets watermarks, and that its lanes are shared by all objects of a resource.
func validateWatermarks(rep *reporter, at string, s Sink, routes []Route) {
	switch {
	case s.Watermarks == 0:
		return
	case s.Watermarks < minWatermarks:
		rep.addProblem(at, Problem{Message: "too short, or negative", Found: s.Watermarks.String(), Expected: "at least 1s, or 0s for none"})
	case s.Kafka != nil:
		for _, topic := range append([]string{s.Kafka.Topic}, routedTopicTexts(s.Name, routes)...) {
			if name := objectPlaceholder(topic); name != "" {
				rep.addProblem(at, Problem{
					Message: fmt.Sprintf("a watermark is about a whole resource, and the topic %s depends on the object", strconv.Quote(topic)),
					Found:   s.Watermarks.String(), Expected: fmt.Sprintf("0s, or a topic without {%s}", name)})
				return
			}
		}
	}
}

func routedTopicTexts(sink string, routes []Route) (topics []string) {
	for _, r := range routes {
		for _, to := range r.To {
			if to.Sink == sink && to.Topic != "" {
				topics = append(topics, to.Topic)
			}
		}
	}
	return topics
}

// objectPlaceholder returns a placeholder of a topic that makes it depend on the object or the change; "" if there is none.
func objectPlaceholder(topic string) string {
	t, err := sinks.ParseTemplate(topic)
	if err != nil { // reported elsewhere
		return ""
	}
	for name := range strings.FieldsSeq("namespace name type") {
		if t.UsesPlaceholder(name) {
			return name
		}
	}
	return ""
}
