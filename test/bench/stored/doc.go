// Package stored reads what a JetStream stream holds, for measurements that compare it with what was sent.
package stored
