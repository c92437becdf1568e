// Package paired evaluates measurements that are taken in turn: the ways to compare run one after the other in each round,
// so that what disturbs the machine disturbs them alike. It measures nothing itself but CPU time.
package paired
