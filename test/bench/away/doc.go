// Package away measures what an outage of a broker costs: a NATS server, or a Kafka broker, is killed while changes go on,
// and started again. It feeds a real journal with two pipelines: one to the server, one to a sink that
// only counts and stays well.
//
// It answers four questions: whether memory grows while changes pile up; whether the other sink notices; how soon the first
// change arrives when the server is back; and how fast the rest follows, compared with the rate at which changes come. In
// the end it reads the server's content and looks for missing, duplicate and reordered changes.
//
// What is measured is this process: journal, delivery and sink, without the API server in front of them.
package away
