// Package pages holds no code: its tests run the commands on pages, as they stand there, in a fresh copy of the
// checkout, against a real API server and a real Kafka.
//
// A block of a page is run that begins with one of these:
//
//	```sh runnable                    runs it to its end, which has to be a success
//	```sh runnable background         starts its one command, which goes on until it is stopped or the page ends
//	```sh runnable stops COMMAND      ends the newest command in the background that begins so, as ^C does, then runs the block
//
// Two addresses are replaced by those of the servers of the test, in blocks and in the copy: Kafka's, 127.0.0.1:9092, and
// that of the exporter's own pages, localhost:8080.
package pages
