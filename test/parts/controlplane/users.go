package controlplane

import (
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// newAdmin makes up a token, so that control planes on one machine do not take each other's clients.
func newAdmin() User {
	return User{Name: "admin", Token: "admin-" + rand.Text(), Groups: []string{"system:masters"}}
}

// writeFiles writes everything that the two servers and their clients read.
func (c *ControlPlane) writeFiles() error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if err := c.writeTokens(); err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	if err := c.writeAuditPolicy(); err != nil {
		return fmt.Errorf("audit policy: %w", err)
	}
	for _, user := range c.users {
		if err := c.writeKubeconfig(user); err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
	}
	return nil
}

// writeTokens writes the file from which the API server knows its users: token, name, UID, groups.
func (c *ControlPlane) writeTokens() error {
	f, err := os.OpenFile(c.path("tokens.csv"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	for _, user := range c.users {
		if err := w.Write([]string{user.Token, user.Name, user.Name, strings.Join(user.Groups, ",")}); err != nil {
			f.Close()
			return err
		}
	}
	w.Flush()
	if err := w.Error(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// writeKubeconfig writes the file as JSON, which every reader of YAML takes.
func (c *ControlPlane) writeKubeconfig(user User) error {
	type object = map[string]any
	const name = "kubecdc-test"
	text, err := json.MarshalIndent(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": name, "cluster": object{
			"server":                c.URL(),
			"certificate-authority": c.CAFile(),
		}}},
		"users":           []object{{"name": user.Name, "user": object{"token": user.Token}}},
		"contexts":        []object{{"name": name, "context": object{"cluster": name, "user": user.Name}}},
		"current-context": name,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.kubeconfigPath(user.Name), append(text, '\n'), 0o600)
}

func (c *ControlPlane) kubeconfigPath(user string) string {
	// A user may be called "system:serviceaccount:a:b", and not every file system takes a colon.
	return c.path("kubeconfig-" + strings.NewReplacer(":", "_", "/", "_").Replace(user))
}
