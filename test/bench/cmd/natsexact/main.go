// Command natsexact delivers many changes to a replicated NATS stream in batches, while leaders are killed, connections cut
// and the process that delivers is killed, and counts what the stream holds in the end: what is lost, there twice or out of
// order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

const stream = "EXACT"

// options select how much is delivered, and through what.
type options struct {
	messages          int
	kill, cut, expire time.Duration // between kills of the leader, cuts of all connections, kills of the delivering process
	inside            bool          // deliver in this process
}

func main() {
	o := options{}
	flag.IntVar(&o.messages, "messages", 1_000_000, "changes to deliver")
	flag.DurationVar(&o.kill, "kill", 4*time.Second, "kill the leader that often")
	flag.DurationVar(&o.cut, "cut", 700*time.Millisecond, "cut all connections that often")
	flag.DurationVar(&o.expire, "expire", 3*time.Second, "kill the process that delivers that often")
	child := flag.String("deliver", "", "deliver to these servers; what the process is started again with")
	state := flag.String("state", "", "file of the position and the sink's state")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *child != "" {
		err = deliver(ctx, *child, *state, uint64(o.messages))
	} else {
		err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "natsexact:", err)
		os.Exit(1)
	}
}

// run starts three servers and what breaks them, delivers, and judges.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "natsexact")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	servers, err := natsserver.StartCluster(ctx, dir, 3, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Kill()) }()
	var urls []string
	var ways []*way
	for _, s := range servers {
		w, err := open(strings.TrimPrefix(s.URL(), "nats://"))
		if err != nil {
			return err
		}
		defer w.close()
		ways, urls = append(ways, w), append(urls, "nats://"+w.listener.Addr().String())
	}

	breaking, stop := context.WithCancel(ctx)
	defer stop()
	var faults sync.WaitGroup
	kills, cuts := 0, 0
	var failed error
	faults.Go(func() {
		for failed == nil && wait(breaking, o.kill) {
			kills++
			failed = killOne(ctx, servers)
		}
	})
	faults.Go(func() {
		for wait(breaking, o.cut) {
			cuts++
			for _, w := range ways {
				w.cut()
			}
		}
	})
	began := time.Now()
	lives, err := lives(ctx, o, strings.Join(urls, ","), filepath.Join(dir, "state"))
	stop()
	faults.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	fmt.Printf("%d changes, %d leaders killed, %d times all connections cut, %d processes, %v\n", o.messages, kills, cuts, lives,
		time.Since(began).Round(time.Second))
	return judge(ctx, servers.URL(), o.messages)
}

// wait reports whether the time has passed; half of it is at random.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d/2 + rand.N(d)):
		return true
	case <-ctx.Done():
		return false
	}
}

// killOne kills the server that leads the stream, or any if none is known to, and brings it back.
func killOne(ctx context.Context, servers natsserver.Servers) error {
	s, leader := servers[rand.IntN(len(servers))], leaderOf(ctx, servers.URL())
	for _, other := range servers {
		if other.Name() == leader {
			s = other
		}
	}
	return errors.Join(s.Kill(), s.Restart(ctx), servers.WaitHealthy(ctx))
}

// leaderOf names the server that leads the stream; "" when that is not known.
func leaderOf(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	nc, err := natsgo.Connect(url)
	if err != nil {
		return ""
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return ""
	}
	s, err := js.Stream(ctx, stream)
	if err != nil || s.CachedInfo().Cluster == nil {
		return ""
	}
	return s.CachedInfo().Cluster.Leader
}

// lives starts processes that deliver, and kills each after a while, until one comes to the end.
func lives(ctx context.Context, o options, urls, state string) (count int, err error) {
	if o.inside {
		return 1, deliver(ctx, urls, state, uint64(o.messages))
	}
	for ; ; count++ {
		life, kill := context.WithCancel(ctx)
		c := exec.CommandContext(life, os.Args[0], "-deliver", urls, "-state", state, "-messages", strconv.Itoa(o.messages))
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			kill()
			return count, err
		}
		killer := time.AfterFunc(o.expire/2+rand.N(o.expire), kill)
		err := c.Wait()
		killed := !killer.Stop() && life.Err() != nil
		kill()
		if err == nil || ctx.Err() != nil || !killed {
			return count + 1, err
		}
	}
}

// judge reads the stream.
func judge(ctx context.Context, url string, messages int) error {
	seen, held, twice, back, newest := make([]bool, messages+1), 0, 0, 0, 0
	err := eachHeader(ctx, url, stream, func(h natsgo.Header) error {
		text, _, _ := strings.Cut(h.Get("Kubecdc-Offset"), " ")
		offset, err := strconv.Atoi(text)
		if err != nil || offset < 1 || offset > messages {
			return fmt.Errorf("a message of none of the changes: %v", h)
		}
		held++
		if seen[offset] {
			twice++
		}
		if offset < newest {
			back++
		}
		seen[offset], newest = true, max(newest, offset)
		return nil
	})
	if err != nil {
		return err
	}
	lost := 0
	for _, there := range seen[1:] {
		if !there {
			lost++
		}
	}
	fmt.Printf("the stream holds %d messages: %d lost, %d twice, %d back\n", held, lost, twice, back)
	if lost+twice+back > 0 {
		return errors.New("this must not be")
	}
	return nil
}

// way is what is between the process that delivers and one server.
type way struct {
	listener net.Listener
	target   string

	mu   sync.Mutex
	open map[net.Conn]bool
	both sync.WaitGroup
}

func open(target string) (*way, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &way{listener: listener, target: target, open: map[net.Conn]bool{}}
	w.both.Go(w.accept)
	return w, nil
}

func (w *way) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.target)
		if err != nil {
			near.Close()
			continue
		}
		w.mu.Lock()
		w.open[near], w.open[far] = true, true
		w.mu.Unlock()
		w.both.Go(func() { w.pass(near, far) })
		w.both.Go(func() { w.pass(far, near) })
	}
}

// pass copies one direction until either side is closed.
func (w *way) pass(to, from net.Conn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
			break
		}
	}
	to.Close()
	from.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, to)
	delete(w.open, from)
}

// cut breaks every connection, with whatever is on its way.
func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Close()
	}
}

func (w *way) close() {
	w.listener.Close()
	w.cut()
	w.both.Wait()
}
