package kafka

import "context"

// pingTries is how many looks at a cluster fail, one behind the other, before it is told away: a connection that was
// idle may just be closed, and one broker of several be dead without harm.
const pingTries = 3

// Ping looks for a broker that lets us in. Where all changes go to one topic, it first looks for that, until it was found
// once: it creates the topic, or holds it against kafka.createTopics, where that is configured.
func (s *Sink) Ping(ctx context.Context) error {
	if s.template.IsConstant() {
		if t := s.topicByName(s.template.String()); t.layout.Load() == nil {
			_, err := s.refreshLayout(ctx, t, nil)
			return err
		}
	}
	var err error
	for range pingTries {
		if err = s.cluster.Ping(ctx); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.cluster.SinkError(ctx, "", err)
}
