package app

import (
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// sourceGuard holds the rules that a signal has paused, and those that the protection holds. It implements [source.Guard].
type sourceGuard struct {
	*protection
	signals *signalControl
	rules   []pausableRule // by index
}

// pausableRule is a rule that a signal can pause, if it has a name.
type pausableRule struct {
	subject signals.Subject
	pause   *delivery.PauseSwitch // nil without a name
}

func newSourceGuard(cfg *config.Config, p *protection, c *signalControl) *sourceGuard {
	g := &sourceGuard{p, c, make([]pausableRule, len(cfg.Resources))}
	for i, r := range cfg.Resources {
		if r.Name != "" {
			of := signals.Subject{Rule: r.Name}
			g.rules[i] = pausableRule{of, c.pauseSwitch(of)}
		}
	}
	return g
}

// Held implements [source.Guard].
func (g *sourceGuard) Held(rule int) (condition.Problem, source.Changed) {
	paused, changed := g.rules[rule].pause.Paused()
	if paused {
		return g.pausedProblem(rule), source.Changed{changed}
	}
	reason, evaluated := g.heldBy(rule)
	return heldProblem(reason), source.Changed{changed, evaluated}
}

// BeginTurn implements [source.Guard].
func (g *sourceGuard) BeginTurn(rule int) (end func(), err error) {
	if pause := g.rules[rule].pause; pause.TryBeginTurn() {
		return pause.EndTurn, nil
	}
	return nil, &source.HeldError{Problem: g.pausedProblem(rule)}
}

// pausedProblem is the problem of the scopes of a rule whose switch is on, or was a moment ago. It follows from that of the
// rule.
func (g *sourceGuard) pausedProblem(rule int) condition.Problem {
	of, p := g.rules[rule].subject, condition.Problem{Code: condition.RulePaused, Cause: "its pause has just ended"}
	if s, ok := g.signals.registry.ActivePause(of); ok {
		p = s.PausedProblem(0)
	}
	p.From = of.Component()
	return p
}

// statuses returns the conditions of the rules that have a name.
func (g *sourceGuard) statuses() (all []condition.Status) {
	for _, r := range g.rules {
		if r.pause != nil {
			all = append(all, g.signals.pausedStatus(r.subject))
		}
	}
	return all
}
