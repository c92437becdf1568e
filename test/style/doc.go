// Package style holds tests that measure how the code and the documentation read: the words of comments and pages, the
// names of functions, the size of types. They print their figures, and fail when one is over its bound.
//
// To see the places behind the figures of one directory:
//
//	go test ./test/style -v -args -in internal/journal -list
//
// Each room has a budget of lines, in budget.txt. After something was removed, this lowers it, and takes new rooms:
//
//	go test ./test/style -run Budget -update
package style
