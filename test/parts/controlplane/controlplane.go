package controlplane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// User is an account of the API server with a bearer token. Rights come from RBAC objects that the test
// creates, or from Groups.
type User struct {
	Name   string
	Token  string
	Groups []string
}

// Options configure what to start. Only Dir is required.
type Options struct {
	// Dir takes all data, keys, logs and kubeconfigs. A directory of an earlier control plane brings its objects back;
	// its keys are recreated, so tokens of its service accounts are void.
	Dir string
	// Port is the API server's port; 0 takes a free one.
	Port int
	// Second starts a second API server on the same etcd, with the same users and keys, on a free port.
	Second bool
	// Users may call the API server beside the admin, which always may do everything.
	Users []User
	// APIServerArgs are appended to the API server's arguments; a flag given here wins over the default.
	APIServerArgs []string
	// SecondArgs are appended to those of the second API server, such as --emulated-version for one of an older version.
	SecondArgs []string
	// EtcdArgs are appended to etcd's arguments.
	EtcdArgs []string
	// NoAudit switches the audit log off, for measurements.
	NoAudit bool
	// SmallHeap lets the API server collect garbage as it usually does, for very many objects. Otherwise it uses more memory,
	// and an eighth less processor time.
	SmallHeap bool
}

// collection returns the variables of the garbage collector.
func (o Options) collection() []string {
	if o.SmallHeap {
		return nil
	}
	return []string{"GOGC=400"}
}

// firstAPIServer is the name of the API server that there always is.
const firstAPIServer = "apiserver"

// ControlPlane is a started control plane. Its methods may be called concurrently.
type ControlPlane struct {
	dir       string
	port      int
	etcdURL   string
	users     map[string]User
	admin     User
	etcd      *process.Service
	apiServer *process.Service
	second    *APIServer // nil without Options.Second

	controllers *process.Service // nil before StartControllerManager
}

// APIServer is one of several API servers. Its methods may be called concurrently.
type APIServer struct {
	port    int
	service *process.Service
}

// Address returns where the API server listens, as "127.0.0.1:PORT". It stays the same over restarts.
func (a *APIServer) Address() string { return ports.Address(a.port) }

// Stop ends the API server as an operator would, with its usual goodbye to clients.
func (a *APIServer) Stop() error { return a.service.Stop() }

// Kill ends the API server at once, without a goodbye to clients.
func (a *APIServer) Kill() error { return a.service.Kill() }

// Start starts a stopped or killed API server again and returns when it is ready.
func (a *APIServer) Start(ctx context.Context) error { return a.service.Start(ctx) }

// Start starts etcd and the API server and returns when the API server is ready and has created its namespaces
// "default" and "kube-system". ctx bounds the start, and the build of the programs if they are not there yet; what
// runs then runs until Stop or the end of this process. After an error nothing runs.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	programs, err := findPrograms(ctx)
	if err != nil {
		return nil, err
	}
	if options.Dir, err = filepath.Abs(options.Dir); err != nil {
		return nil, err
	}
	var started *ControlPlane
	err = ports.Try(4, func(free []int) error {
		c, err := prepare(options, programs, free)
		if err != nil {
			return err
		}
		if err := c.start(ctx); err != nil {
			return errors.Join(err, c.Stop())
		}
		started = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("control plane in %s: %w", options.Dir, err)
	}
	return started, nil
}

// prepare writes all files and describes the processes.
func prepare(options Options, programs programs, free []int) (*ControlPlane, error) {
	etcdPort, peerPort, port, secondPort := free[0], free[1], free[2], free[3]
	if options.Port != 0 {
		port = options.Port
	}
	admin := newAdmin()
	c := &ControlPlane{
		dir:     options.Dir,
		port:    port,
		etcdURL: "http://" + ports.Address(etcdPort),
		admin:   admin,
		users:   map[string]User{admin.Name: admin},
	}
	for _, user := range options.Users {
		c.users[user.Name] = user
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	c.etcd = process.NewService(c.etcdProcess(programs.etcd, peerPort, options.EtcdArgs))
	apiServer, err := c.apiServerProcess(firstAPIServer, port, programs.apiServer, options)
	if err != nil {
		return nil, err
	}
	c.apiServer = process.NewService(apiServer)
	if options.Second {
		options.APIServerArgs = slices.Concat(options.APIServerArgs, options.SecondArgs)
		second, err := c.apiServerProcess("second-apiserver", secondPort, programs.apiServer, options)
		if err != nil {
			return nil, err
		}
		c.second = &APIServer{port: secondPort, service: process.NewService(second)}
	}
	return c, nil
}

// start starts etcd first: the API server ends itself when it finds no etcd for some time.
func (c *ControlPlane) start(ctx context.Context) error {
	if err := c.etcd.Start(ctx); err != nil {
		return err
	}
	if err := c.apiServer.Start(ctx); err != nil || c.second == nil {
		return err
	}
	return c.second.Start(ctx)
}

// APIServers returns all API servers: one, or two with Options.Second.
func (c *ControlPlane) APIServers() []*APIServer {
	all := []*APIServer{{port: c.port, service: c.apiServer}}
	if c.second != nil {
		all = append(all, c.second)
	}
	return all
}

// Stop stops the API servers and then etcd, and returns when both have ended. Files stay. An error means that one had to
// be killed or had ended by itself before; nothing runs in either case. A second Stop does nothing.
func (c *ControlPlane) Stop() error {
	// The order saves the API servers a fruitless search for their etcd.
	var errs []error
	if c.controllers != nil {
		errs = append(errs, c.controllers.Stop())
	}
	for _, a := range c.APIServers() {
		errs = append(errs, a.Stop())
	}
	return errors.Join(errors.Join(errs...), c.etcd.Stop())
}

// StopAPIServer ends the API server as an operator would, with its usual goodbye to clients.
func (c *ControlPlane) StopAPIServer() error { return c.apiServer.Stop() }

// KillAPIServer ends the API server at once, without a goodbye to clients.
func (c *ControlPlane) KillAPIServer() error { return c.apiServer.Kill() }

// StartAPIServer starts a stopped or killed API server again, on the same port, and returns when it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error { return c.apiServer.Start(ctx) }

// StopEtcd stops etcd, for tests that exchange its data. Stop the API server first.
func (c *ControlPlane) StopEtcd() error { return c.etcd.Stop() }

// StartEtcd starts a stopped etcd again, on the same ports and EtcdDir.
func (c *ControlPlane) StartEtcd(ctx context.Context) error { return c.etcd.Start(ctx) }

// APIServerProcess returns the running API server, to read its usage; nil while it is stopped.
func (c *ControlPlane) APIServerProcess() *process.Process { return c.apiServer.Process() }

// URL returns the API server's address, as "https://127.0.0.1:PORT". It stays the same over restarts.
func (c *ControlPlane) URL() string { return "https://" + ports.Address(c.port) }

// CAFile returns the path of the PEM file with the certificate that verifies the API server.
func (c *ControlPlane) CAFile() string { return c.path("ca.crt") }

// AdminToken returns the bearer token of the admin, a member of system:masters.
func (c *ControlPlane) AdminToken() string { return c.admin.Token }

// EtcdEndpoint returns etcd's address, as "http://127.0.0.1:PORT": no TLS, no password.
func (c *ControlPlane) EtcdEndpoint() string { return c.etcdURL }

// EtcdDir returns etcd's data directory. Touch it only while etcd is stopped.
func (c *ControlPlane) EtcdDir() string { return c.path("etcd") }

// Kubeconfig returns the path of the admin's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.kubeconfigPath(c.admin.Name) }

// KubeconfigFor returns the path of the kubeconfig of one of Options.Users. Another name is an error.
func (c *ControlPlane) KubeconfigFor(user string) (string, error) {
	if _, known := c.users[user]; !known {
		return "", fmt.Errorf("no user %q in Options.Users", user)
	}
	return c.kubeconfigPath(user), nil
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }
