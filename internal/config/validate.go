package config

// validateSections checks a decoded configuration, section by section: what needs several values, or more than a type.
func validateSections(rep *reporter, c *Config) {
	validateCharacters(rep, c)
	validateCluster(rep, c.Cluster)
	validateRedaction(rep, c.Redaction)
	validateResources(rep, c.Resources, c.Redaction.Key != "")
	validateSinks(rep, c.Sinks, c.Routes)
	validateJournal(rep, c.Journal)
	validateDelivery(rep, c.Delivery)
	validateAudit(rep, c.Audit)
	validateAdmin(rep, c.Admin)
	rep.checkOneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	rep.checkOneOf("log.format", c.Log.Format, "text", "json")
}

// validateRelations checks what sections say of each other. All that was given has been decoded.
func validateRelations(rep *reporter, c *Config) {
	validateRoutes(rep, c)
	validateState(rep, c)
	validateElection(rep, c)
	validateOwnAddresses(rep, c)
	validateFileOverlaps(rep, c)
}

// warnSuspicious warns of valid settings that are probably mistakes. c has no problems.
func warnSuspicious(rep *reporter, c *Config) {
	warnResources(rep, c.Resources)
	warnSinkOverlaps(rep, c)
	validateReach(rep, c)
	warnUnusedKeys(rep, c)
	warnJournalBounds(rep, c.Journal)
	warnRate(rep, c.Delivery.Rate)
}

// warnUnusedKeys warns of values that have no effect because their section is off.
func warnUnusedKeys(rep *reporter, c *Config) {
	const intake, bus, lease = "audit.webhook, audit.files or audit.kafka", "state.sink", "election.lease"
	const source, stamps = intake + ", or audit.stamps.enabled", "audit.stamps.enabled: true"
	defaults := Default()
	audit, events, state, election := c.Audit.Enabled(), c.Audit.HasEvents(), c.State.Enabled(), c.Election.Enabled()
	for _, k := range []struct {
		path             string
		enabled, changed bool
		needs            string
	}{
		{"audit.fileEnvelope", len(c.Audit.Files) > 0, c.Audit.FileEnvelope != defaults.Audit.FileEnvelope, "audit.files"},
		{"audit.stamps.grace", c.Audit.Stamps.Enabled, c.Audit.Stamps.Grace != defaults.Audit.Stamps.Grace, stamps},
		{"audit.settle", events, c.Audit.Settle != defaults.Audit.Settle, intake},
		{"audit.window", audit, c.Audit.Window != defaults.Audit.Window, source},
		{"audit.countersEvery", events, c.Audit.CountersEvery != defaults.Audit.CountersEvery, intake},
		{"audit.wait", audit, c.Audit.Wait != defaults.Audit.Wait, source},
		{"audit.likely", events, c.Audit.Likely, intake},
		{"audit.clockSkew", events, c.Audit.ClockSkew != defaults.Audit.ClockSkew, intake},
		{"audit.maxPending", audit, c.Audit.MaxPending != defaults.Audit.MaxPending, source},
		{"state.name", state, c.State.Name != defaults.State.Name, bus},
		{"admin.signals.allowCleartextCredentials", c.Admin.Signals.TokenFile != "", c.Admin.Signals.AllowCleartextCredentials, "admin.signals.tokenFile"},
		{"election.duration", election, c.Election.Duration != defaults.Election.Duration, lease},
		{"election.yieldAfter", election, c.Election.YieldAfter != defaults.Election.YieldAfter, lease},
	} {
		if k.changed && !k.enabled {
			rep.addWarning(k.path, Problem{Message: "has no effect without " + k.needs})
		}
	}
}
